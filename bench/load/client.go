package main

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

const (
	service        = "/apache.rocketmq.v2.MessagingService/"
	requestTimeout = 10 * time.Second
	maxReceive     = 64 << 20
	clientVersion  = "5.1.4"
)

// rawCodec hands serialised messages through as they are.
type rawCodec struct{}

func (rawCodec) Marshal(value any) ([]byte, error) { return *value.(*[]byte), nil }

func (rawCodec) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func (rawCodec) Name() string { return "proto" }

// clients counts those of this process.
var clients atomic.Uint64

// client spreads calls over its connections in turn.
type client struct {
	connections []*grpc.ClientConn
	next        atomic.Uint64
	metadata    metadata.MD
}

func connect(chosen options) (*client, error) {
	made := &client{metadata: metadata.Pairs(
		"x-mq-client-id", fmt.Sprintf("load@%d@%d", time.Now().UnixNano(), clients.Add(1)),
		"x-mq-language", "GO",
		"x-mq-protocol", "v2",
		"x-mq-client-version", clientVersion,
		"x-mq-request-id", "3e3ff6a1-66b1-4a34-8e0b-0f6c2a0d2a11",
		"x-mq-date-time", "20260101T000000Z",
		"x-mq-namespace", "",
	)}
	for range chosen.connections {
		connection, err := grpc.NewClient("passthrough:///"+chosen.endpoint,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}),
				grpc.MaxCallRecvMsgSize(maxReceive)))
		if err != nil {
			return nil, err
		}
		made.connections = append(made.connections, connection)
	}
	return made, nil
}

func (c *client) close() {
	for _, connection := range c.connections {
		_ = connection.Close()
	}
}

func (c *client) connection() *grpc.ClientConn {
	return c.connections[c.next.Add(1)%uint64(len(c.connections))]
}

// call performs a unary call whose answer carries its status as field 1.
func (c *client) call(ctx context.Context, method string, request []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(ctx, c.metadata), requestTimeout)
	defer cancel()
	var answer []byte
	if err := c.connection().Invoke(ctx, service+method, &request, &answer); err != nil {
		return nil, err
	}
	return answer, checkStatus(answer)
}

// routeQueues returns the serialised queue with id 0 of each broker name: any queue there.
func (c *client) routeQueues(ctx context.Context, topic string) ([][]byte, error) {
	answer, err := c.call(ctx, "QueryRoute", encodeQueryRoute(topic))
	if err != nil {
		return nil, err
	}
	queues := decodeRoute(answer)
	if len(queues) == 0 {
		return nil, fmt.Errorf("the route of %s has no queue", topic)
	}
	return queues, nil
}

// receive returns the messages of one receive call, none when the long poll brought nothing.
func (c *client) receive(ctx context.Context, request []byte, poll time.Duration) ([]received, error) {
	ctx, cancel := context.WithTimeout(
		metadata.NewOutgoingContext(ctx, c.metadata), poll+requestTimeout)
	defer cancel()
	stream, err := c.connection().NewStream(
		ctx, &grpc.StreamDesc{ServerStreams: true}, service+"ReceiveMessage")
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(&request); err != nil {
		return nil, err
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	var messages []received
	for {
		var part []byte
		if err := stream.RecvMsg(&part); err == io.EOF {
			return messages, nil
		} else if err != nil {
			return nil, err
		}
		message, found, err := decodeReceived(part)
		if err != nil {
			return nil, err
		}
		if found {
			messages = append(messages, message)
		}
	}
}
