package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestThePageNamesTheSlowGroup runs the program as it is, until the page puts
// the slow group first and says why.
func TestThePageNamesTheSlowGroup(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 60*time.Second)
	defer stop()
	out, in := io.Pipe()
	ran := make(chan error, 1)
	go func() { ran <- run(ctx, in, "127.0.0.1:0") }()
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	type group struct{ Name, State, Why string }
	var first group
	for first.Name != "emails" || first.State != "behind" {
		if ctx.Err() != nil {
			t.Fatalf("the first group is %+v", first)
		}
		var page struct{ Topics []struct{ Groups []group } }
		if err := get(ctx, strings.TrimSpace(url)+"?format=json", &page); err != nil {
			t.Fatal(err)
		}
		if len(page.Topics) != 1 || len(page.Topics[0].Groups) == 0 {
			continue // it has just begun
		}
		first = page.Topics[0].Groups[0]
	}
	if !strings.Contains(first.Why, "falls behind: takes ") {
		t.Error(first.Why)
	}
	stop()
	http.DefaultClient.CloseIdleConnections()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

func get(ctx context.Context, url string, v any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(v)
}
