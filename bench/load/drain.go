package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"stratamq/load/window"
)

const poll = 5 * time.Second

// runDrain receives and acknowledges until a number of messages is done, or the time is up. A
// request of the report is a receive, its latency the time until its messages are acknowledged.
func runDrain(ctx context.Context, c *client, chosen options) (*window.Window, error) {
	queues, err := c.routeQueues(ctx, chosen.topic)
	if err != nil {
		return nil, err
	}
	// Not a deadline: the server would see it as the time left for each long poll.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(window.Seconds(chosen.seconds), cancel).Stop()
	if err := c.subscribe(ctx, chosen.topic, chosen.group); err != nil {
		return nil, err
	}
	measured := window.New(0)
	var done atomic.Int64
	var enough sync.Once
	var receivers sync.WaitGroup
	for number := range chosen.inFlight {
		request := encodeReceive(chosen.group, queues[number%len(queues)], poll)
		receivers.Add(1)
		go func() {
			defer receivers.Done()
			for ctx.Err() == nil {
				began := time.Now()
				messages, err := c.receive(ctx, request, poll)
				if err == nil && len(messages) > 0 {
					err = acknowledge(ctx, c, chosen, messages)
				}
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					if !measured.Fail(err) {
						return
					}
					continue
				}
				measured.Add(began, len(messages))
				if done.Add(int64(len(messages))) >= int64(chosen.messages) {
					enough.Do(measured.Close)
					cancel()
				}
			}
		}()
	}
	receivers.Wait()
	enough.Do(measured.Close)
	return measured, nil
}

// acknowledge sends the messages of one receive in pieces, a few at a time.
func acknowledge(ctx context.Context, c *client, chosen options, messages []received) error {
	var calls errgroup.Group
	calls.SetLimit(chosen.ackParallel)
	for len(messages) > 0 {
		piece := messages[:min(chosen.ackBatch, len(messages))]
		messages = messages[len(piece):]
		calls.Go(func() error {
			_, err := c.call(ctx, "AckMessage", encodeAck(chosen.group, chosen.topic, piece))
			return err
		})
	}
	return calls.Wait()
}
