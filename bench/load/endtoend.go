package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"stratamq/load/window"
)

const (
	mostOutstanding = 10_000
	mostCounted     = 1 << 20
	receiversEach   = 4
	grace           = 5 * time.Second
)

// runEndToEnd sends at a fixed rate, whatever the server does, and measures from the moment a send
// was due until the message is in a consumer's hands.
func runEndToEnd(ctx context.Context, c *client, chosen options) (*window.Window, error) {
	queues, err := c.routeQueues(ctx, chosen.topic)
	if err != nil {
		return nil, err
	}
	receiving, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := c.subscribe(receiving, chosen.topic, chosen.group); err != nil {
		return nil, err
	}
	inFlight := chosen.receivers
	if inFlight == 0 {
		inFlight = len(queues) * receiversEach
	}
	measured := window.New(window.Seconds(chosen.warmup))
	counted := make(chan struct{}, mostCounted)
	var receivers sync.WaitGroup
	for number := range inFlight {
		request := encodeReceive(chosen.group, queues[number%len(queues)], poll)
		receivers.Add(1)
		go func() {
			defer receivers.Done()
			for receiving.Err() == nil {
				receiveAndMeasure(receiving, c, chosen, request, measured, counted)
			}
		}()
	}
	await(counted, sendAtRate(ctx, c, chosen, measured))
	measured.Close()
	cancel()
	receivers.Wait()
	return measured, nil
}

func receiveAndMeasure(ctx context.Context, c *client, chosen options, request []byte,
	measured *window.Window, counted chan<- struct{}) {
	messages, err := c.receive(ctx, request, poll)
	for _, message := range messages {
		sent := time.Unix(0, int64(binary.LittleEndian.Uint64(message.body)))
		measured.Add(sent, 1)
		if !sent.Before(measured.Start) {
			counted <- struct{}{}
		}
	}
	if err == nil && len(messages) > 0 {
		_, err = c.call(ctx, "AckMessage", encodeAck(chosen.group, chosen.topic, messages))
	}
	if err != nil && ctx.Err() == nil {
		measured.Fail(err)
	}
}

// sendAtRate begins each send when it is due, waiting for no answer; it returns how many of the
// measured time should arrive.
func sendAtRate(ctx context.Context, c *client, chosen options, measured *window.Window) int {
	messages := newEncoder(chosen.topic, chosen.bodyBytes)
	outstanding := make(chan struct{}, mostOutstanding)
	interval := time.Second / time.Duration(chosen.rate)
	end := measured.Start.Add(window.Seconds(chosen.seconds))
	var sends sync.WaitGroup
	var due atomic.Int64
	for at := time.Now(); at.Before(end); at = at.Add(interval) {
		time.Sleep(time.Until(at))
		select {
		case outstanding <- struct{}{}:
		default:
			measured.Fail(fmt.Errorf("%d sends are outstanding", mostOutstanding))
			continue
		}
		sends.Add(1)
		go func() {
			defer sends.Done()
			defer func() { <-outstanding }()
			if _, err := c.call(ctx, "SendMessage", messages.encode(1, at)); err != nil {
				measured.Fail(err)
			} else if !at.Before(measured.Start) {
				due.Add(1)
			}
		}()
	}
	sends.Wait()
	return int(due.Load())
}

// await returns when all messages were counted, or after the time of grace.
func await(counted <-chan struct{}, due int) {
	expired := time.After(grace)
	for range due {
		select {
		case <-counted:
		case <-expired:
			return
		}
	}
}
