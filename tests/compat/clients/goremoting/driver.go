package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const sendTimeout = 30 * time.Second

// options of the process: HOST:PORT of a nameserver, and the keys that sign all requests.
type options struct {
	Nameserver string `json:"nameserver"`
	AccessKey  string `json:"access_key"`
	SecretKey  string `json:"secret_key"`
}

// command has the fields of all commands.
type command struct {
	ID         int               `json:"id"`
	Op         string            `json:"op"`
	Name       string            `json:"name"`
	Group      string            `json:"group"`
	Topic      string            `json:"topic"`
	Bodies     []string          `json:"bodies"`
	Tag        string            `json:"tag"`
	Keys       string            `json:"keys"`
	Properties map[string]string `json:"properties"`
	DelayLevel int               `json:"delay_level"`
	How        string            `json:"how"`
	Argument   int               `json:"argument"`
	Expression string            `json:"expression"`
	Orderly    bool              `json:"orderly"`
	Broadcast  bool              `json:"broadcast"`
	Failures   int               `json:"failures"`
	Count      int               `json:"count"`
	TimeoutMs  int               `json:"timeout_ms"`
	Check      string            `json:"check"`
}

type closable interface{ Shutdown() error }

// driver holds the clients of this process by name.
type driver struct {
	options      options
	clients      map[string]closable
	producers    map[string]rocketmq.Producer
	transactions map[string]rocketmq.TransactionProducer
	listeners    map[string]*listener
}

func newDriver(given options) *driver {
	return &driver{
		options:      given,
		clients:      map[string]closable{},
		producers:    map[string]rocketmq.Producer{},
		transactions: map[string]rocketmq.TransactionProducer{},
		listeners:    map[string]*listener{},
	}
}

func (d *driver) handle(wanted command) (any, error) {
	switch wanted.Op {
	case "producer":
		return d.startProducer(wanted)
	case "transactions":
		return d.startTransactions(wanted)
	case "send":
		return d.send(wanted)
	case "send_half":
		return d.sendHalf(wanted)
	case "push":
		return d.push(wanted)
	case "delivered":
		return d.listeners[wanted.Name].wait(wanted.Count, wanted.TimeoutMs), nil
	case "pull":
		return d.pull(wanted)
	case "close":
		return map[string]any{}, d.clients[wanted.Name].Shutdown()
	}
	return nil, fmt.Errorf("no command %s", wanted.Op)
}

func (d *driver) producerOptions(wanted command) []producer.Option {
	chosen := []producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{d.options.Nameserver})),
		producer.WithGroupName(wanted.Group),
		producer.WithInstanceName(wanted.Name),
		producer.WithSendMsgTimeout(10 * time.Second),
		producer.WithQueueSelector(producer.NewHashQueueSelector()),
	}
	if d.options.AccessKey != "" {
		chosen = append(chosen, producer.WithCredentials(d.credentials()))
	}
	return chosen
}

func (d *driver) credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: d.options.AccessKey, SecretKey: d.options.SecretKey}
}

func (d *driver) startProducer(wanted command) (any, error) {
	made, err := rocketmq.NewProducer(d.producerOptions(wanted)...)
	if err != nil {
		return nil, err
	}
	d.clients[wanted.Name], d.producers[wanted.Name] = made, made
	return map[string]any{}, made.Start()
}

func (d *driver) startTransactions(wanted command) (any, error) {
	made, err := rocketmq.NewTransactionProducer(
		decisions{check: wanted.Check}, d.producerOptions(wanted)...)
	if err != nil {
		return nil, err
	}
	d.clients[wanted.Name], d.transactions[wanted.Name] = made, made
	return map[string]any{}, made.Start()
}

func (d *driver) send(wanted command) (any, error) {
	messages, err := messagesOf(wanted)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
	defer cancel()
	made := d.producers[wanted.Name]
	switch wanted.How {
	case "oneway":
		return map[string]any{}, made.SendOneWay(ctx, messages...)
	case "async":
		return sendAsync(ctx, made, messages)
	}
	result, err := made.SendSync(ctx, messages...)
	if err != nil {
		return nil, err
	}
	return shown(result), nil
}

func sendAsync(
	ctx context.Context, made rocketmq.Producer, messages []*primitive.Message,
) (any, error) {
	results, failures := make(chan any, 1), make(chan error, 1)
	err := made.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
		if err != nil {
			failures <- err
			return
		}
		results <- shown(result)
	}, messages...)
	if err != nil {
		return nil, err
	}
	select {
	case result := <-results:
		return result, nil
	case err := <-failures:
		return nil, err
	case <-ctx.Done():
		return nil, errors.New("no answer to an async send")
	}
}

func (d *driver) sendHalf(wanted command) (any, error) {
	messages, err := messagesOf(wanted)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
	defer cancel()
	result, err := d.transactions[wanted.Name].SendMessageInTransaction(ctx, messages[0])
	if err != nil {
		return nil, err
	}
	return shown(result.SendResult), nil
}

func (d *driver) push(wanted command) (any, error) {
	chosen := []consumer.Option{
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{d.options.Nameserver})),
		consumer.WithGroupName(wanted.Group),
		consumer.WithInstance(wanted.Name),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(wanted.Orderly),
	}
	if wanted.Broadcast {
		chosen = append(chosen, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if d.options.AccessKey != "" {
		chosen = append(chosen, consumer.WithCredentials(d.credentials()))
	}
	made, err := rocketmq.NewPushConsumer(chosen...)
	if err != nil {
		return nil, err
	}
	taken := newListener(wanted.Failures)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: wanted.Expression}
	if err := made.Subscribe(wanted.Topic, selector, taken.consume); err != nil {
		return nil, err
	}
	d.clients[wanted.Name], d.listeners[wanted.Name] = made, taken
	return map[string]any{}, made.Start()
}

// pull reads all queues of a topic from their beginning to their end.
func (d *driver) pull(wanted command) (any, error) {
	made, err := rocketmq.NewPullConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{d.options.Nameserver})),
		consumer.WithGroupName(wanted.Group),
		consumer.WithInstance(wanted.Name),
	)
	if err != nil {
		return nil, err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	if err := made.Subscribe(wanted.Topic, selector); err != nil {
		return nil, err
	}
	if err := made.Start(); err != nil {
		return nil, err
	}
	d.clients[wanted.Name] = made
	queues, err := made.GetTopicRouteInfo(wanted.Topic)
	if err != nil {
		return nil, err
	}
	found := []received{}
	for _, queue := range queues {
		// A pull at the end of a queue waits: it is not made.
		end, err := made.OffsetForTimestamp(queue, time.Now().Add(time.Hour).UnixMilli())
		if err != nil {
			return nil, err
		}
		for offset := int64(0); offset < end; {
			ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
			result, err := made.PullFrom(ctx, queue, offset, 32)
			cancel()
			if err != nil {
				return nil, err
			}
			if result.Status != primitive.PullFound {
				break
			}
			for _, message := range result.GetMessageExts() {
				found = append(found, report(message))
			}
			offset = result.NextBeginOffset
		}
	}
	return found, nil
}

func messagesOf(wanted command) ([]*primitive.Message, error) {
	messages := []*primitive.Message{}
	for _, text := range wanted.Bodies {
		body, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, err
		}
		message := primitive.NewMessage(wanted.Topic, body)
		if wanted.Tag != "" {
			message.WithTag(wanted.Tag)
		}
		if wanted.Keys != "" {
			message.WithKeys([]string{wanted.Keys})
		}
		for key, value := range wanted.Properties {
			message.WithProperty(key, value)
		}
		if wanted.DelayLevel != 0 {
			message.WithDelayTimeLevel(wanted.DelayLevel)
		}
		if wanted.How == "orderly" {
			message.WithShardingKey(fmt.Sprint(wanted.Argument))
		}
		messages = append(messages, message)
	}
	return messages, nil
}

func shown(result *primitive.SendResult) map[string]any {
	status := "OK"
	if result.Status != primitive.SendOK {
		status = fmt.Sprint(result.Status)
	}
	return map[string]any{
		"status": status, "message_id": result.MsgID, "offset": result.QueueOffset,
	}
}
