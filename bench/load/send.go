package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"stratamq/load/window"
)

// runSend keeps a number of send requests in flight, each worker one after another.
func runSend(ctx context.Context, c *client, chosen options) (*window.Window, error) {
	messages := newEncoder(chosen.topic, chosen.bodyBytes)
	messages.kind, messages.delay = chosen.kind, window.Seconds(chosen.delay)
	measured := window.New(window.Seconds(chosen.warmup))
	end := measured.Start.Add(window.Seconds(chosen.seconds))
	var workers sync.WaitGroup
	for range chosen.inFlight {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for time.Now().Before(end) {
				began := time.Now()
				if err := c.sendOnce(ctx, messages.encode(chosen.batch, began), chosen); err != nil {
					if !measured.Fail(err) {
						return
					}
					continue
				}
				measured.Add(began, chosen.batch)
			}
		}()
	}
	time.Sleep(time.Until(end))
	measured.Close()
	workers.Wait()
	return measured, nil
}

// sendOnce sends a request; a transaction is committed too.
func (c *client) sendOnce(ctx context.Context, request []byte, chosen options) error {
	answer, err := c.call(ctx, "SendMessage", request)
	if err != nil || chosen.kind != transactionKind {
		return err
	}
	_, err = c.call(ctx, "EndTransaction", encodeCommit(chosen.topic, decodeEntry(answer)))
	return err
}

// runFill sends a number of messages as fast as it can, for a later drain.
func runFill(ctx context.Context, c *client, chosen options) (*window.Window, error) {
	messages := newEncoder(chosen.topic, chosen.bodyBytes)
	measured := window.New(0)
	var left atomic.Int64
	left.Store(int64(chosen.messages))
	var workers sync.WaitGroup
	for range chosen.inFlight {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for left.Add(-int64(chosen.batch)) >= 0 {
				began := time.Now()
				if _, err := c.call(ctx, "SendMessage", messages.encode(chosen.batch, began)); err != nil {
					left.Add(int64(chosen.batch))
					if !measured.Fail(err) {
						return
					}
					continue
				}
				measured.Add(began, chosen.batch)
			}
		}()
	}
	workers.Wait()
	measured.Close()
	return measured, nil
}
