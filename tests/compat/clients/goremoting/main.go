// Driver of the Go client of the remoting protocol; commands and answers are lines of JSON as in
// ../README.md, but in turn: the next command is read when the one before is answered.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type answer struct {
	ID     int      `json:"id"`
	Result any      `json:"result,omitempty"`
	Error  *failure `json:"error,omitempty"`
}

type failure struct {
	Code  *int   `json:"code"`
	Text  string `json:"text"`
	Class string `json:"class"`
}

func main() {
	rlog.SetLogLevel("error")
	var given options
	if err := json.Unmarshal([]byte(os.Args[1]), &given); err != nil {
		panic(err)
	}
	clients := newDriver(given)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var wanted command
		if err := json.Unmarshal(lines.Bytes(), &wanted); err != nil {
			panic(err)
		}
		reply := answer{ID: wanted.ID}
		result, err := clients.handle(wanted)
		if err != nil {
			reply.Error = &failure{Text: err.Error(), Class: fmt.Sprintf("%T", err)}
		} else {
			reply.Result = result
		}
		if err := out.Encode(reply); err != nil {
			panic(err)
		}
	}
}
