package main

import (
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

var resolutions = map[string]rmq.TransactionResolution{
	"commit":   rmq.COMMIT,
	"rollback": rmq.ROLLBACK,
	"unknown":  rmq.UNKNOWN,
}

// scriptedChecker answers every check alike and remembers the message ids.
type scriptedChecker struct {
	answer     rmq.TransactionResolution
	mutex      sync.Mutex
	messageIDs []string
	changed    chan struct{}
}

func newScriptedChecker(answer string) *scriptedChecker {
	return &scriptedChecker{answer: resolutions[answer], changed: make(chan struct{})}
}

func (s *scriptedChecker) check(view *rmq.MessageView) rmq.TransactionResolution {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.messageIDs = append(s.messageIDs, view.GetMessageId())
	close(s.changed)
	s.changed = make(chan struct{})
	return s.answer
}

// wait returns all message ids so far, once there are count or the time is up.
func (s *scriptedChecker) wait(count int, timeout time.Duration) []string {
	expired := time.After(timeout)
	for {
		s.mutex.Lock()
		seen := append([]string{}, s.messageIDs...)
		changed := s.changed
		s.mutex.Unlock()
		if len(seen) >= count {
			return seen
		}
		select {
		case <-changed:
		case <-expired:
			return seen
		}
	}
}
