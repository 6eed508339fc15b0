package penstock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock/penstock"
)

// A handler sees a batch, not how it is carried: the same function runs on a
// topic in memory, a topic on disk and a stream.
func ExampleHandler() {
	var handle penstock.Handler[string] = func(_ context.Context, b penstock.Batch[string]) error {
		for i, name := range b.Values() {
			if name == "" {
				b.Fail(i, errors.New("no name"))
				continue
			}
			fmt.Println(b.Topic(), b.Offset(i), name)
		}
		return nil
	}

	// What a carrier does around a handler:
	d := penstock.Delivery{Topic: "names", First: 7}
	err := handle(context.Background(), penstock.NewBatch([]string{"Ada", "", "Grace"}, &d))
	fmt.Println(err, d.Settle())
	// Output:
	// names 7 Ada
	// names 9 Grace
	// <nil> [{1 no name}]
}

func ExampleAppendEnvelope() {
	b, err := penstock.AppendEnvelope(nil, &penstock.Meta{ID: "order-17"}, []byte("payload"))
	if err != nil {
		fmt.Println(err)
		return
	}
	meta, payload, err := penstock.DecodeEnvelope(b)
	fmt.Println(meta.ID, string(payload), err)
	// Output: order-17 payload <nil>
}
