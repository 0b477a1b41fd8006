// Send one message and receive it: `go run . ENDPOINT TOPIC GROUP`.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

func main() {
	endpoint, topic, group := os.Args[1], os.Args[2], os.Args[3]
	// AccessKey and AccessSecret where the cluster controls access. The client speaks TLS;
	// rmq.EnableSsl = false for plaintext.
	keys := &credentials.SessionCredentials{}

	producer, err := rmq.NewProducer(&rmq.Config{Endpoint: endpoint, Credentials: keys},
		rmq.WithTopics(topic))
	check(err)
	check(producer.Start())
	message := &rmq.Message{Topic: topic, Body: []byte("Hello from Go")}
	message.SetTag("created")
	message.SetKeys("order-1")
	receipts, err := producer.Send(context.Background(), message)
	check(err)
	fmt.Println("sent", receipts[0].MessageID)
	check(producer.GracefulStop())

	consumer, err := rmq.NewSimpleConsumer(
		&rmq.Config{Endpoint: endpoint, ConsumerGroup: group, Credentials: keys},
		rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}))
	check(err)
	check(consumer.Start())
	for {
		// One message, leased for 30 seconds; no message is an error with code MESSAGE_NOT_FOUND.
		received, err := consumer.Receive(context.Background(), 1, 30*time.Second)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		for _, message := range received {
			fmt.Println("received", message.GetMessageId(), string(message.GetBody()))
			check(consumer.Ack(context.Background(), message))
		}
		break
	}
	check(consumer.GracefulStop())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
