package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sort"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

// message is what the client shows of a received message.
type message struct {
	Ref        int               `json:"ref"`
	MessageID  string            `json:"message_id"`
	Topic      string            `json:"topic"`
	Tag        *string           `json:"tag"`
	Keys       []string          `json:"keys"`
	Group      *string           `json:"group"`
	BodySHA256 string            `json:"body_sha256"`
	BodySize   int               `json:"body_size"`
	Properties map[string]string `json:"properties"`
	Attempt    int32             `json:"attempt"`
	Offset     int64             `json:"offset"`
}

type client interface {
	Start() error
	GracefulStop() error
}

// driver holds the clients by name and the messages received by reference number.
type driver struct {
	options   options
	mutex     sync.Mutex
	clients   map[string]client
	listeners map[string]*scriptedListener
	checkers  map[string]*scriptedChecker
	views     []*rmq.MessageView
	// By reference number, counted like the views.
	transactions []rmq.Transaction
}

func newDriver(chosen options) *driver {
	return &driver{
		options:   chosen,
		clients:   map[string]client{},
		listeners: map[string]*scriptedListener{},
		checkers:  map[string]*scriptedChecker{},
	}
}

var operations = map[string]func(*driver, command) (any, error){
	"producer":         (*driver).producer,
	"send":             (*driver).send,
	"recall":           (*driver).recall,
	"send_half":        (*driver).sendHalf,
	"end":              (*driver).end,
	"checked":          (*driver).checked,
	"simple":           (*driver).simple,
	"receive":          (*driver).receive,
	"ack":              (*driver).ack,
	"change_invisible": (*driver).changeInvisible,
	"push":             (*driver).push,
	"delivered":        (*driver).delivered,
	"close":            (*driver).close,
}

var done = struct{}{}

func (d *driver) producer(c command) (any, error) {
	chosen := []rmq.ProducerOption{rmq.WithTopics(c.Topics...)}
	if c.Checker != nil {
		checker := newScriptedChecker(*c.Checker)
		d.mutex.Lock()
		d.checkers[c.Name] = checker
		d.mutex.Unlock()
		chosen = append(chosen, rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: checker.check}))
	}
	producer, err := rmq.NewProducer(d.config(nil), chosen...)
	if err != nil {
		return nil, err
	}
	producer.SetRequestTimeout(milliseconds(d.options.TimeoutMs))
	return d.start(c.Name, producer)
}

func (d *driver) send(c command) (any, error) {
	producer, err := named[rmq.Producer](d, c.Name)
	if err != nil {
		return nil, err
	}
	receipts, err := producer.Send(context.Background(), built(c))
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"message_id":     receipts[0].MessageID,
		"transaction_id": receipts[0].TransactionId,
		"offset":         receipts[0].Offset,
		"recall_handle":  receipts[0].RecallHandle,
	}, nil
}

func (d *driver) recall(c command) (any, error) {
	producer, err := named[rmq.Producer](d, c.Name)
	if err != nil {
		return nil, err
	}
	recalled, err := producer.Recall(context.Background(), c.Topic, c.Handle)
	return map[string]any{"message_id": recalled}, err
}

func (d *driver) sendHalf(c command) (any, error) {
	producer, err := named[rmq.Producer](d, c.Name)
	if err != nil {
		return nil, err
	}
	transaction := producer.BeginTransaction()
	receipts, err := producer.SendWithTransaction(context.Background(), built(c), transaction)
	if err != nil {
		return nil, err
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.transactions = append(d.transactions, transaction)
	return map[string]any{
		"ref":            len(d.transactions),
		"message_id":     receipts[0].MessageID,
		"transaction_id": receipts[0].TransactionId,
	}, nil
}

func (d *driver) end(c command) (any, error) {
	d.mutex.Lock()
	transaction := d.transactions[c.Ref-1]
	d.mutex.Unlock()
	if c.Resolution == "commit" {
		return done, transaction.Commit()
	}
	return done, transaction.RollBack()
}

func (d *driver) checked(c command) (any, error) {
	d.mutex.Lock()
	checker := d.checkers[c.Name]
	d.mutex.Unlock()
	return map[string]any{"message_ids": checker.wait(c.Count, milliseconds(c.TimeoutMs))}, nil
}

func built(c command) *rmq.Message {
	sent := &rmq.Message{Topic: c.Topic, Body: c.Body}
	if c.Size > 0 {
		sent.Body = bytes.Repeat(c.Body, c.Size/len(c.Body)+1)[:c.Size]
	}
	if c.Tag != nil {
		sent.SetTag(*c.Tag)
	}
	if len(c.Keys) > 0 {
		sent.SetKeys(c.Keys...)
	}
	if c.Group != nil {
		sent.SetMessageGroup(*c.Group)
	}
	if c.Priority != nil {
		if err := sent.SetPriority(*c.Priority); err != nil {
			panic(err)
		}
	}
	for name, value := range c.Properties {
		sent.AddProperty(name, value)
	}
	if c.DeliverAtMs > 0 {
		sent.SetDelayTimestamp(time.UnixMilli(c.DeliverAtMs))
	}
	return sent
}

func (d *driver) simple(c command) (any, error) {
	consumer, err := rmq.NewSimpleConsumer(d.config(c.Group),
		rmq.WithSimpleAwaitDuration(milliseconds(c.AwaitMs)),
		rmq.WithSimpleSubscriptionExpressions(subscriptions(c)))
	if err != nil {
		return nil, err
	}
	consumer.SetRequestTimeout(milliseconds(d.options.TimeoutMs))
	return d.start(c.Name, consumer)
}

func (d *driver) receive(c command) (any, error) {
	consumer, err := named[rmq.SimpleConsumer](d, c.Name)
	if err != nil {
		return nil, err
	}
	views, err := consumer.Receive(context.Background(), c.MaxMessages, milliseconds(c.InvisibleMs))
	if status, ok := rmq.AsErrRpcStatus(err); ok && status.GetCode() == int32(v2.Code_MESSAGE_NOT_FOUND) {
		views, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	received := make([]message, 0, len(views))
	for _, view := range views {
		received = append(received, d.report(view))
	}
	return map[string]any{"messages": received}, nil
}

func (d *driver) ack(c command) (any, error) {
	consumer, err := named[rmq.SimpleConsumer](d, c.Name)
	if err != nil {
		return nil, err
	}
	return done, consumer.Ack(context.Background(), d.view(c.Ref))
}

func (d *driver) changeInvisible(c command) (any, error) {
	consumer, err := named[rmq.SimpleConsumer](d, c.Name)
	if err != nil {
		return nil, err
	}
	return done, consumer.ChangeInvisibleDuration(d.view(c.Ref), milliseconds(c.InvisibleMs))
}

func (d *driver) push(c command) (any, error) {
	listener := newScriptedListener(c.Failures, d.report)
	d.mutex.Lock()
	d.listeners[c.Name] = listener
	d.mutex.Unlock()
	consumer, err := rmq.NewPushConsumer(d.config(c.Group),
		rmq.WithPushSubscriptionExpressions(subscriptions(c)),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: listener.consume}))
	if err != nil {
		return nil, err
	}
	return d.start(c.Name, consumer)
}

func (d *driver) delivered(c command) (any, error) {
	d.mutex.Lock()
	listener := d.listeners[c.Name]
	d.mutex.Unlock()
	return map[string]any{"messages": listener.wait(c.Count, milliseconds(c.TimeoutMs))}, nil
}

func (d *driver) close(c command) (any, error) {
	stopped, err := named[client](d, c.Name)
	if err != nil {
		return nil, err
	}
	return done, stopped.GracefulStop()
}

func (d *driver) config(group *string) *rmq.Config {
	config := &rmq.Config{
		Endpoint:  d.options.Endpoint,
		NameSpace: d.options.Namespace,
		Credentials: &credentials.SessionCredentials{
			AccessKey:    d.options.AccessKey,
			AccessSecret: d.options.SecretKey,
		},
	}
	if group != nil {
		config.ConsumerGroup = *group
	}
	return config
}

func (d *driver) start(name string, started client) (any, error) {
	if err := started.Start(); err != nil {
		return nil, err
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.clients[name] = started
	return done, nil
}

func named[T any](d *driver, name string) (T, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	found, ok := d.clients[name].(T)
	if !ok {
		return found, fmt.Errorf("no such client: %s", name)
	}
	return found, nil
}

func (d *driver) view(ref int) *rmq.MessageView {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.views[ref-1]
}

func (d *driver) report(view *rmq.MessageView) message {
	d.mutex.Lock()
	d.views = append(d.views, view)
	ref := len(d.views)
	d.mutex.Unlock()
	digest := sha256.Sum256(view.GetBody())
	keys := append([]string{}, view.GetKeys()...)
	sort.Strings(keys)
	return message{
		Ref:        ref,
		MessageID:  view.GetMessageId(),
		Topic:      view.GetTopic(),
		Tag:        view.GetTag(),
		Keys:       keys,
		Group:      view.GetMessageGroup(),
		BodySHA256: hex.EncodeToString(digest[:]),
		BodySize:   len(view.GetBody()),
		Properties: view.GetProperties(),
		Attempt:    view.GetDeliveryAttempt(),
		Offset:     view.GetOffset(),
	}
}

func subscriptions(c command) map[string]*rmq.FilterExpression {
	expressions := map[string]*rmq.FilterExpression{}
	kind := rmq.TAG
	if c.SQL {
		kind = rmq.SQL92
	}
	for topic, expression := range c.Subscriptions {
		expressions[topic] = rmq.NewFilterExpressionWithType(expression, kind)
	}
	return expressions
}
