package main

import (
	"context"
	"sync"
	"time"

	"stratamq/load/window"
)

const waitsPoll = 20 * time.Second

// runWaits sends at a fixed rate while simple consumers wait, and measures from the moment a send
// was due until the message is in a consumer's hands. Each consumer is a client of its own, and asks
// at one broker name after the other as the official ones do.
func runWaits(ctx context.Context, c *client, chosen options) (*window.Window, error) {
	queues, err := c.routeQueues(ctx, chosen.topic)
	if err != nil {
		return nil, err
	}
	receiving, cancel := context.WithCancel(ctx)
	defer cancel()
	consumers := make([]*client, chosen.inFlight)
	for number := range consumers {
		alone := chosen
		alone.connections = 1
		if consumers[number], err = connect(alone); err != nil {
			return nil, err
		}
		defer consumers[number].close()
		if err := consumers[number].subscribe(receiving, chosen.topic, chosen.group); err != nil {
			return nil, err
		}
	}
	measured := window.New(window.Seconds(chosen.warmup))
	counted := make(chan struct{}, mostCounted)
	var receivers sync.WaitGroup
	for number, consumer := range consumers {
		receivers.Add(1)
		go func() {
			defer receivers.Done()
			for turn := number; receiving.Err() == nil; turn++ {
				request := encodeReceive(chosen.group, queues[turn%len(queues)], waitsPoll)
				receiveAndMeasure(receiving, consumer, chosen, request, measured, counted)
			}
		}()
	}
	await(counted, sendAtRate(ctx, c, chosen, measured))
	measured.Close()
	cancel()
	receivers.Wait()
	return measured, nil
}
