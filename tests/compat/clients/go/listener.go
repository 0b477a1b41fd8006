package main

import (
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

// scriptedListener fails the first deliveries of each message id, then succeeds; it remembers
// every delivery.
type scriptedListener struct {
	failures   int
	report     func(*rmq.MessageView) message
	mutex      sync.Mutex
	seen       map[string]int
	deliveries []message
	changed    chan struct{} // closed, and made anew, at each delivery
}

func newScriptedListener(failures int, report func(*rmq.MessageView) message) *scriptedListener {
	return &scriptedListener{
		failures: failures,
		report:   report,
		seen:     map[string]int{},
		changed:  make(chan struct{}),
	}
}

func (l *scriptedListener) consume(view *rmq.MessageView) rmq.ConsumerResult {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.seen[view.GetMessageId()]++
	l.deliveries = append(l.deliveries, l.report(view))
	close(l.changed)
	l.changed = make(chan struct{})
	if l.failures < 0 || l.seen[view.GetMessageId()] <= l.failures {
		return rmq.FAILURE
	}
	return rmq.SUCCESS
}

func (l *scriptedListener) wait(count int, timeout time.Duration) []message {
	expired := time.After(timeout)
	for {
		l.mutex.Lock()
		deliveries, changed := append([]message{}, l.deliveries...), l.changed
		l.mutex.Unlock()
		if len(deliveries) >= count {
			return deliveries
		}
		select {
		case <-changed:
		case <-expired:
			return deliveries
		}
	}
}
