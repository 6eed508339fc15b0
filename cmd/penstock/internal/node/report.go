package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/edge"
	"github.com/penstock/penstock/cmd/penstock/internal/wire"
)

// callTimeout bounds one call to the driver.
const callTimeout = 10 * time.Second

// driver is the other process, seen from here. It is safe for concurrent use.
type driver struct {
	config wire.NodeConfig
	client *http.Client
}

func newDriver(c wire.NodeConfig) *driver {
	return &driver{config: c, client: &http.Client{
		Timeout:   callTimeout,
		Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
	}}
}

func (d *driver) close() { d.client.CloseIdleConnections() }

// report tells the driver that the group took the events with the given ids,
// and returns nil when it has noted that. Dead says that they came out of the
// dead-letter topic.
func (d *driver) report(ctx context.Context, group string, dead bool, ids []string) error {
	r := wire.Report{Group: group, Incarnation: d.config.Incarnation, Dead: dead, IDs: make([]uint32, 0, len(ids))}
	for _, id := range ids {
		if n, ok := wire.ParseID(d.config.Run, id); ok {
			r.IDs = append(r.IDs, n)
		} else {
			r.Foreign++
		}
	}
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if _, err := d.post(ctx, wire.PathReport, edge.TypeJSON, body); err != nil {
		return fmt.Errorf("report to the driver: %w", err)
	}
	return nil
}

// callWebhook sends a batch to the partner, and returns the ids that it
// refuses for good.
func (d *driver) callWebhook(ctx context.Context, b penstock.Batch[[]byte]) (refused map[string]bool, err error) {
	var body []byte
	for i, data := range b.All() {
		id, err := json.Marshal(b.ID(i))
		if err != nil {
			return nil, err
		}
		body = fmt.Appendf(body, `{"id":%s,"event":%s}`+"\n", id, data)
	}
	answer, err := d.post(ctx, wire.PathWebhook, edge.TypeNDJSON, body)
	if err != nil {
		return nil, err
	}
	var a wire.WebhookAnswer
	if err := json.Unmarshal(answer, &a); err != nil {
		return nil, fmt.Errorf("the partner's answer: %w", err)
	}
	refused = make(map[string]bool, len(a.Refused))
	for _, id := range a.Refused {
		refused[id] = true
	}
	return refused, nil
}

func (d *driver) post(ctx context.Context, path, kind string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.config.DriverURL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", kind)
	r.Header.Set("Authorization", "Bearer "+d.config.Secret)
	resp, err := d.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%d %.100s", resp.StatusCode, bytes.TrimSpace(answer))
	}
	return answer, nil
}
