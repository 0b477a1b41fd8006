package main

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	codeOK              = 20000
	codeMessageNotFound = 40401
	tagFilter           = 1
	identityEncoding    = 1
	commit              = 1
	messageGroups       = 64
	transactionKind     = "transaction"
	secondsTo2021       = 1_609_459_200
)

var messageTypes = map[string]uint64{"normal": 1, "fifo": 2, "delay": 3, transactionKind: 4}

// entry is what ending a transaction needs of a send's answer.
type entry struct{ messageID, transactionID []byte }

// received is what a drain and a latency measurement need of a message.
type received struct {
	id, handle []byte
	body       []byte
}

func appendBytes(to []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, field, protowire.BytesType), value)
}

func appendString(to []byte, field protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(to, field, protowire.BytesType), value)
}

func appendVarint(to []byte, field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, field, protowire.VarintType), value)
}

func resource(name string) []byte { return appendString(nil, 2, name) }

func duration(length time.Duration) []byte {
	return appendVarint(nil, 1, uint64(length/time.Second))
}

// encoder writes the messages of one topic; what does not change is encoded once.
type encoder struct {
	topic      []byte
	properties []byte
	bodyBytes  int
	prefix     string
	kind       string
	delay      time.Duration
	count      atomic.Uint32
}

func newEncoder(topic string, bodyBytes int) *encoder {
	// As the official clients do: address and process, then seconds since 2021, then a number.
	var random [8]byte
	_, _ = rand.Read(random[:])
	made := &encoder{
		topic:     resource(topic),
		bodyBytes: bodyBytes,
		prefix:    "01" + strings.ToUpper(hex.EncodeToString(random[:])),
		kind:      "normal",
	}
	// About 200 bytes of user properties, as applications have them.
	for name, value := range map[string]string{
		"trace-parent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"content-type": "application/vnd.example.order+json; charset=utf-8",
		"tenant":       "north-1",
		"schema":       "order.created/3",
	} {
		made.properties = appendBytes(made.properties, 2,
			appendString(appendString(nil, 1, name), 2, value))
	}
	return made
}

// encode returns a send request whose bodies begin with the time, in nanoseconds.
func (e *encoder) encode(messages int, at time.Time) []byte {
	body := make([]byte, e.bodyBytes)
	binary.LittleEndian.PutUint64(body, uint64(at.UnixNano()))
	request := make([]byte, 0, messages*(e.bodyBytes+512))
	made := uint32(time.Now().Unix() - secondsTo2021)
	for range messages {
		var system []byte
		system = appendString(system, 1, "tag")
		system = appendString(system, 2, "key-0123456789")
		number := e.count.Add(1)
		system = appendString(system, 3, fmt.Sprintf("%s%08X%08X", e.prefix, made, number))
		system = appendVarint(system, 5, identityEncoding)
		system = appendVarint(system, 6, messageTypes[e.kind])
		system = appendBytes(system, 7, appendVarint(nil, 1, uint64(at.Unix())))
		system = appendString(system, 8, "load")
		switch e.kind {
		case "fifo":
			system = appendString(system, 17, fmt.Sprintf("group-%d", number%messageGroups))
		case "delay":
			system = appendBytes(system, 11, appendVarint(nil, 1, uint64(at.Add(e.delay).Unix())))
		}

		var message []byte
		message = appendBytes(message, 1, e.topic)
		message = append(message, e.properties...)
		message = appendBytes(message, 3, system)
		message = appendBytes(message, 4, body)
		request = appendBytes(request, 1, message)
	}
	return request
}

func encodeQueryRoute(topic string) []byte { return appendBytes(nil, 1, resource(topic)) }

func encodeCommit(topic string, ended entry) []byte {
	request := appendBytes(nil, 1, resource(topic))
	request = appendBytes(request, 2, ended.messageID)
	request = appendBytes(request, 3, ended.transactionID)
	return appendVarint(request, 4, commit)
}

// decodeEntry reads the first entry of a send's answer.
func decodeEntry(answer []byte) (sent entry) {
	fields(answer, func(field protowire.Number, _ uint64, value []byte) {
		if field != 2 || sent.messageID != nil {
			return
		}
		fields(value, func(field protowire.Number, _ uint64, value []byte) {
			switch field {
			case 2:
				sent.messageID = value
			case 3:
				sent.transactionID = value
			}
		})
	})
	return sent
}

func encodeReceive(group string, queue []byte, poll time.Duration) []byte {
	filter := appendString(appendVarint(nil, 1, tagFilter), 2, "*")
	request := appendBytes(nil, 1, resource(group))
	request = appendBytes(request, 2, queue)
	request = appendBytes(request, 3, filter)
	request = appendVarint(request, 4, 32)
	request = appendBytes(request, 5, duration(60*time.Second))
	return appendBytes(request, 7, duration(poll))
}

func encodeAck(group, topic string, messages []received) []byte {
	request := appendBytes(nil, 1, resource(group))
	request = appendBytes(request, 2, resource(topic))
	for _, message := range messages {
		entry := appendBytes(appendBytes(nil, 1, message.id), 2, message.handle)
		request = appendBytes(request, 3, entry)
	}
	return request
}

// fields calls visit for each field; value is the content of a length-delimited one.
func fields(data []byte, visit func(field protowire.Number, number uint64, value []byte)) {
	for len(data) > 0 {
		field, kind, length := protowire.ConsumeTag(data)
		if length < 0 {
			return
		}
		data = data[length:]
		var number uint64
		var value []byte
		switch kind {
		case protowire.VarintType:
			number, length = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			value, length = protowire.ConsumeBytes(data)
		default:
			length = protowire.ConsumeFieldValue(field, kind, data)
		}
		if length < 0 {
			return
		}
		visit(field, number, value)
		data = data[length:]
	}
}

func decodeStatus(status []byte) (code uint64, text string) {
	fields(status, func(field protowire.Number, number uint64, value []byte) {
		switch field {
		case 1:
			code = number
		case 2:
			text = string(value)
		}
	})
	return code, text
}

// checkStatus reads the status in field 1 of an answer.
func checkStatus(answer []byte) error {
	var status []byte
	fields(answer, func(field protowire.Number, _ uint64, value []byte) {
		if field == 1 && status == nil {
			status = value
		}
	})
	if code, text := decodeStatus(status); code != codeOK {
		return fmt.Errorf("code %d: %s", code, text)
	}
	return nil
}

func decodeRoute(answer []byte) (queues [][]byte) {
	fields(answer, func(field protowire.Number, _ uint64, queue []byte) {
		if field != 2 {
			return
		}
		var id uint64
		fields(queue, func(field protowire.Number, number uint64, _ []byte) {
			if field == 2 {
				id = number
			}
		})
		if id == 0 {
			queues = append(queues, queue)
		}
	})
	return queues
}

// decodeReceived reads one part of a receive stream; found tells whether it is a message.
func decodeReceived(part []byte) (message received, found bool, err error) {
	fields(part, func(field protowire.Number, _ uint64, value []byte) {
		switch field {
		case 1:
			if code, text := decodeStatus(value); code != codeOK && code != codeMessageNotFound {
				err = fmt.Errorf("code %d: %s", code, text)
			}
		case 2:
			message, found = decodeMessage(value), true
		}
	})
	return message, found, err
}

func decodeMessage(data []byte) (message received) {
	fields(data, func(field protowire.Number, _ uint64, value []byte) {
		switch field {
		case 3:
			fields(value, func(field protowire.Number, _ uint64, value []byte) {
				switch field {
				case 3:
					message.id = value
				case 12:
					message.handle = value
				}
			})
		case 4:
			message.body = value
		}
	})
	return message
}
