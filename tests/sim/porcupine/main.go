// Reads histories of one key of a key-value table as JSON lines, one history each, and prints for
// each "true" or "false": whether porcupine finds it linearizable. The model is that of
// strata_sim.linearizability.ITEM; the two checkers are held against each other by
// tests/sim/test_item_histories.py.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"github.com/anishathalye/porcupine"
)

// An item; version 0 means that there is none.
type item struct {
	Value   string
	Version int
}

type operation struct {
	Client int    `json:"client"`
	Verb   string `json:"verb"`
	// What a put or a swap writes.
	Value string `json:"value"`
	// The version that a swap expects.
	Expected int `json:"expected"`
	// Whether there was an answer; without one every answer fits.
	Answered bool `json:"answered"`
	// The answer: a version, a deletion's 0 or 1, or the item that a get returned.
	Number int   `json:"number"`
	Found  item  `json:"found"`
	Called int64 `json:"called"`
	// Of an operation without an answer: after everything else.
	Returned int64 `json:"returned"`
}

func step(state, input, _ interface{}) (bool, interface{}) {
	now, asked := state.(item), input.(operation)
	switch asked.Verb {
	case "put":
		after := item{asked.Value, now.Version + 1}
		return !asked.Answered || asked.Number == after.Version, after
	case "get":
		return !asked.Answered || asked.Found == now, now
	case "cas":
		if asked.Expected != now.Version {
			return !asked.Answered || asked.Number == 0, now
		}
		after := item{asked.Value, now.Version + 1}
		return !asked.Answered || asked.Number == after.Version, after
	case "delete":
		there := 0
		if now.Version > 0 {
			there = 1
		}
		return !asked.Answered || asked.Number == there, item{}
	}
	panic("an item cannot " + asked.Verb)
}

func main() {
	model := porcupine.Model{
		Init: func() interface{} { return item{} },
		Step: step,
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var asked []operation
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		history := make([]porcupine.Operation, 0, len(asked))
		for _, one := range asked {
			history = append(history, porcupine.Operation{
				ClientId: one.Client, Input: one, Call: one.Called, Return: one.Returned,
			})
		}
		fmt.Println(porcupine.CheckOperations(model, history))
	}
}
