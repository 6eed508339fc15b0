package queue_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/penstock/penstock/queue"
)

// One line of a service shows every topic of the process: a page for people,
// JSON for programs, metrics for Prometheus.
func ExampleDebugHandler() {
	orders, err := queue.Open(queue.Config[string]{Name: "example-orders"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer orders.Close()
	if _, err := orders.Group("billing", queue.GroupConfig{}); err != nil {
		fmt.Println(err)
		return
	}
	if err := orders.Produce(context.Background(), "tea", "salt"); err != nil {
		fmt.Println(err)
		return
	}

	mux := http.NewServeMux()
	mux.Handle("/debug/penstock/", queue.DebugHandler())

	w := httptest.NewRecorder() // a service would serve mux on loopback
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/penstock/?format=json&topic=example-orders", nil))
	var page struct {
		Topics []struct {
			Groups []struct {
				Name, State string
				Lag         int
			}
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil {
		fmt.Println(err)
		return
	}
	for _, g := range page.Topics[0].Groups {
		fmt.Printf("%s: %s, %d events behind\n", g.Name, g.State, g.Lag)
	}
	// Output:
	// billing: no_consumer, 2 events behind
}
