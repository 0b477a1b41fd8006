package main

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	natsConnections = 4
	ackLimit        = 10 * time.Second
	createPause     = 200 * time.Millisecond
	createCall      = 5 * time.Second
)

// natsPublisher spreads messages over its connections in turn.
type natsPublisher struct {
	subject     string
	header      nats.Header
	connections []*nats.Conn
	streams     []jetstream.JetStream
	next        atomic.Uint64
}

func newNats(chosen options) (publisher, error) {
	made := &natsPublisher{subject: chosen.topic, header: nats.Header{}}
	for _, each := range headers {
		made.header.Set(each[0], each[1])
	}
	for range natsConnections {
		connection, err := nats.Connect("nats://" + strings.Join(chosen.servers, ",nats://"))
		if err != nil {
			return nil, err
		}
		made.connections = append(made.connections, connection)
		stream, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(1<<16))
		if err != nil {
			return nil, err
		}
		made.streams = append(made.streams, stream)
	}
	return made, nil
}

// create repeats until the servers have a leader and the stream has its replicas.
func (p *natsPublisher) create(ctx context.Context, chosen options) error {
	for {
		once, cancel := context.WithTimeout(ctx, createCall)
		_, err := p.streams[0].CreateOrUpdateStream(once, jetstream.StreamConfig{
			Name:     chosen.topic,
			Subjects: []string{chosen.topic},
			Storage:  jetstream.FileStorage,
			Replicas: chosen.replicas,
		})
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stream %s: %w", chosen.topic, err)
		case <-time.After(createPause):
		}
	}
}

func (p *natsPublisher) publish(ctx context.Context, bodies [][]byte) error {
	stream := p.streams[p.next.Add(1)%uint64(len(p.streams))]
	if len(bodies) == 1 {
		ctx, cancel := context.WithTimeout(ctx, ackLimit)
		defer cancel()
		_, err := stream.PublishMsg(ctx, p.message(bodies[0]))
		return err
	}
	acks := make([]jetstream.PubAckFuture, 0, len(bodies))
	for _, body := range bodies {
		ack, err := stream.PublishMsgAsync(p.message(body))
		if err != nil {
			return err
		}
		acks = append(acks, ack)
	}
	limit := time.NewTimer(ackLimit)
	defer limit.Stop()
	for _, ack := range acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			return err
		case <-limit.C:
			return fmt.Errorf("no ack in %s", ackLimit)
		}
	}
	return nil
}

// message has headers of its own: the client adds one to those of an asynchronous message.
func (p *natsPublisher) message(body []byte) *nats.Msg {
	header := make(nats.Header, len(p.header)+1)
	for name, values := range p.header {
		header[name] = values
	}
	return &nats.Msg{Subject: p.subject, Header: header, Data: body}
}

func (p *natsPublisher) close() {
	for _, connection := range p.connections {
		connection.Close()
	}
}
