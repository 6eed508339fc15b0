package node

import (
	"encoding/json"
	"io/fs"
	"net/http"
	"path/filepath"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/edge"
	"github.com/penstock/penstock/cmd/penstock/internal/wire"
)

// routes is what the node serves: its stats for whoever asks, and the edge,
// which also answers whatever is not there. A mux would clean and redirect
// paths that are to be refused.
func (n *node) routes() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != wire.PathStats || r.Method != http.MethodGet {
			n.edge.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", edge.TypeJSON)
		_ = json.NewEncoder(w).Encode(n.stats()) // a client that is gone needs no answer
	})
}

func (n *node) stats() wire.Stats {
	return wire.Stats{
		Incarnation: n.config.Incarnation,
		Level:       n.level.String(),
		Groups:      n.groupStats(),
		DiskBytes:   n.disk.bytes(),
		MemoryBytes: memoryBytes(),
	}
}

// memoryBytes is what the Go runtime holds of the system's memory.
func memoryBytes() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() - s[1].Value.Uint64()
}

// diskEvery bounds how often the directory is walked.
const diskEvery = 2 * time.Second

// diskUse knows how large the files of a directory are, a little late.
type diskUse struct {
	dir string

	mu   sync.Mutex
	at   time.Time
	last int64
}

func (d *diskUse) bytes() int64 {
	d.mu.Lock()
	if time.Since(d.at) < diskEvery {
		defer d.mu.Unlock()
		return d.last
	}
	d.at = time.Now() // others take the last figure meanwhile
	d.mu.Unlock()
	size := sizeOf(d.dir)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = size
	return size
}

// sizeOf adds up the allocated size of the files below dir. Files that go away
// meanwhile count as nothing.
func sizeOf(dir string) (total int64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				total += info.Size()
			}
		}
		return nil
	})
	return total
}
