package main

import (
	"context"
	"encoding/base64"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// received is what the client shows of a message.
type received struct {
	MessageID      string `json:"message_id"`
	Topic          string `json:"topic"`
	Queue          int    `json:"queue"`
	Offset         int64  `json:"offset"`
	Tag            string `json:"tag"`
	Keys           string `json:"keys"`
	Body           string `json:"body"`
	ReconsumeTimes int32  `json:"reconsume_times"`
	Color          string `json:"color"`
}

func report(message *primitive.MessageExt) received {
	queue := -1
	if message.Queue != nil {
		queue = message.Queue.QueueId
	}
	return received{
		MessageID:      message.MsgId,
		Topic:          message.Topic,
		Queue:          queue,
		Offset:         message.QueueOffset,
		Tag:            message.GetTags(),
		Keys:           strings.TrimSpace(message.GetKeys()),
		Body:           base64.StdEncoding.EncodeToString(message.Body),
		ReconsumeTimes: message.ReconsumeTimes,
		Color:          message.GetProperty("color"),
	}
}

// listener takes deliveries; the first `failures` of each body fail.
type listener struct {
	failures int
	lock     sync.Mutex
	seen     map[string]int
	messages []received
	more     chan struct{}
}

func newListener(failures int) *listener {
	return &listener{failures: failures, seen: map[string]int{}, more: make(chan struct{}, 1)}
}

func (l *listener) consume(
	_ context.Context, messages ...*primitive.MessageExt,
) (consumer.ConsumeResult, error) {
	l.lock.Lock()
	defer l.lock.Unlock()
	fails := false
	for _, message := range messages {
		l.messages = append(l.messages, report(message))
		l.seen[string(message.Body)]++
		fails = fails || l.seen[string(message.Body)] <= l.failures
	}
	select {
	case l.more <- struct{}{}:
	default:
	}
	if fails {
		return consumer.ConsumeRetryLater, nil
	}
	return consumer.ConsumeSuccess, nil
}

// wait returns all deliveries so far, once there are `count` or the time is up.
func (l *listener) wait(count int, timeoutMs int) []received {
	ends := time.After(time.Duration(timeoutMs) * time.Millisecond)
	for {
		l.lock.Lock()
		copied := append([]received{}, l.messages...)
		l.lock.Unlock()
		if len(copied) >= count {
			return copied
		}
		select {
		case <-l.more:
		case <-ends:
			return copied
		}
	}
}

// decisions of a producer on its transactions: unknown at first, then what `check` says.
type decisions struct{ check string }

func (d decisions) ExecuteLocalTransaction(*primitive.Message) primitive.LocalTransactionState {
	if d.check == "" {
		return primitive.CommitMessageState
	}
	return primitive.UnkonwnState
}

func (d decisions) CheckLocalTransaction(*primitive.MessageExt) primitive.LocalTransactionState {
	if d.check == "commit" {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}
