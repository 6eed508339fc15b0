package node

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/edge"
	"github.com/penstock/penstock/cmd/penstock/internal/wire"
	"github.com/penstock/penstock/queue"
)

// segmentBytes is the size of the segments of every topic here. It is far
// below the default, which suits machines that are given to a log: a demo must
// not take a gigabyte of somebody's disk.
const segmentBytes = 8 * penstock.MiB

// node is one incarnation.
type node struct {
	config wire.NodeConfig
	logger *slog.Logger
	stderr io.Writer // gets the last line
	level  penstock.Durability
	driver *driver
	slow   *pace

	orders *queue.Topic[[]byte]
	dead   *queue.Topic[[]byte]
	groups []*member // of the topics; the last one reports dead letters
	feed   *feed
	edge   *edge.Edge
	server *http.Server
	disk   diskUse

	turnover atomic.Int64 // cents that the pipeline has added up
}

// Run serves one incarnation. It reads its configuration and the wish to stop
// from stdin and writes one line to stdout when it is ready. It returns when
// the driver asked it to stop or is gone, when ctx ends, or when a part failed;
// the last line on stderr then says what is left. Errors are logged to stderr,
// everything to the log file.
func Run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) (err error) {
	lines := bufio.NewReader(stdin)
	config, err := hello(lines)
	if err != nil {
		return err
	}
	logger, closeLog, err := openLog(config.Log, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeLog()) }()
	n, err := open(config, logger)
	if err != nil {
		return err
	}
	n.stderr = stderr
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// Ends with the driver's wish or its end. When something else ended the
	// node it stays in its read, which the end of the process ends.
	go func() { stop(untilStop(lines)) }()
	return n.run(ctx, stdout)
}

var (
	errAsked      = errors.New("the driver asked for it")
	errDriverGone = errors.New("the driver is gone")
)

// hello reads the configuration.
func hello(lines *bufio.Reader) (c wire.NodeConfig, err error) {
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return c, fmt.Errorf("read the configuration from standard input (penstock node is started by penstock demo): %w", err)
	}
	d := json.NewDecoder(strings.NewReader(string(line)))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, fmt.Errorf("configuration: %w", err)
	}
	return c, nil
}

func untilStop(lines *bufio.Reader) error {
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return errDriverGone
		}
		if strings.TrimSpace(line) == wire.Stop {
			return errAsked
		}
	}
}

// openLog returns a logger that writes everything to the file and errors to
// stderr too.
func openLog(path string, stderr io.Writer) (logger *slog.Logger, closeLog func() error, err error) {
	if path == "" {
		return slog.New(slog.NewTextHandler(stderr, nil)), func() error { return nil }, nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("open the log: %w", err)
	}
	return slog.New(slog.NewMultiHandler(
		slog.NewTextHandler(f, nil),
		slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelError}),
	)), f.Close, nil
}

// open opens the topics and creates the groups, before anything is taken in:
// a group sees every event that is acknowledged after it was created.
func open(c wire.NodeConfig, logger *slog.Logger) (_ *node, err error) {
	n := &node{config: c, logger: logger, driver: newDriver(c), slow: &pace{rate: c.SlowRate}}
	n.disk.dir = c.Dir
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if n.level, err = penstock.ParseDurability(c.Durability); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, err
	}
	if n.orders, err = n.topic(wire.Topic, c.Partitions, c.Capacity); err != nil {
		return nil, err
	}
	if n.dead, err = n.topic(wire.DeadTopic, 1, 0); err != nil {
		return nil, err
	}
	if n.feed, err = openFeed(n); err != nil {
		return nil, err
	}
	if err := n.openGroups(); err != nil {
		return nil, err
	}
	n.edge, err = edge.New(edge.Config{Topics: map[string]edge.Topic{wire.Topic: door{n.orders}}, Logger: logger})
	return n, err
}

func (n *node) topic(name string, partitions, capacity int) (*queue.Topic[[]byte], error) {
	return queue.Open(queue.Config[[]byte]{
		Name: name, Partitions: partitions, Capacity: capacity, WhenFull: queue.Fail,
		Key:        func(event []byte) string { return string(event) }, // of an event that came without a key
		Dir:        n.config.Dir,
		Codec:      penstock.Raw(),
		Durability: n.level, SegmentBytes: segmentBytes,
		Logger: n.logger,
	})
}

// door lets the edge into a topic.
type door struct{ topic *queue.Topic[[]byte] }

// Append produces the events and waits until they have reached their level.
func (d door) Append(ctx context.Context, events []penstock.Event[[]byte]) (penstock.Durability, error) {
	receipt, err := d.topic.ProduceEventsAsync(ctx, events...)
	if err != nil {
		return 0, err
	}
	ack, err := receipt.Wait(ctx)
	return ack.Level, err
}

// run serves until ctx ends or a part fails, then stops in order.
func (n *node) run(ctx context.Context, stdout io.Writer) (err error) {
	defer func() { err = errors.Join(err, n.close()) }()
	failed, fail := context.WithCancelCause(context.Background())
	defer fail(nil)
	streams, hangUp, err := n.feed.far.listen(n.logger, fail)
	if err != nil {
		return err
	}
	defer hangUp() // after the stream, whose drain needs the connection
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	working, stopWork := context.WithCancel(context.Background())
	defer stopWork()
	var wg sync.WaitGroup
	n.server = edge.NewServer(n.routes(), n.logger)
	wg.Go(func() { // serves until Shutdown below; waited for at the end
		if err := n.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fail(fmt.Errorf("edge: %w", err))
		}
	})
	n.startGroups(working, &wg, fail)
	if err := json.NewEncoder(stdout).Encode(wire.Ready{URL: "http://" + listener.Addr().String(), Streams: streams}); err != nil {
		fail(err)
	}
	select {
	case <-ctx.Done():
	case <-failed.Done():
	}
	n.edge.Stop()
	limit, cancel := context.WithTimeout(context.Background(), n.drain())
	defer cancel()
	if n.server.Shutdown(limit) != nil {
		_ = n.server.Close() // cuts what is still under way: it was not acknowledged
	}
	stopWork()
	wg.Wait()
	n.farewell(cmp.Or(context.Cause(failed), context.Cause(ctx)))
	return context.Cause(failed)
}

func (n *node) drain() time.Duration { return max(n.config.Drain, time.Second) }

// farewell says what is left, as the last line.
func (n *node) farewell(why error) {
	var left strings.Builder
	for _, g := range n.groupStats() {
		if g.Lag > 0 {
			fmt.Fprintf(&left, " %s %d,", g.Name, g.Lag)
		}
	}
	n.logger.Info("stopped", "why", why, "left", left.String())
	if left.Len() > 0 {
		fmt.Fprintf(n.stderr, "node %d stopped (%v); left:%s kept, will be replayed by the next start\n",
			n.config.Incarnation, why, left.String())
	}
}

// close closes what was opened, users before what they use. It may be called
// on a node that was opened in part.
func (n *node) close() error {
	var errs []error
	if n.feed != nil {
		errs = append(errs, n.feed.close())
	}
	for _, t := range []*queue.Topic[[]byte]{n.orders, n.dead} {
		if t != nil {
			errs = append(errs, t.Close())
		}
	}
	n.driver.close()
	return errors.Join(errs...)
}
