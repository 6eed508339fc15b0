package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
)

// logDir is what the commands that look at a data directory have in common.
// They take no lock and change nothing, so a process may be using it.
type logDir struct {
	Dir    string   `arg:"" help:"Data directory: the one that holds the file FORMAT."`
	Topic  []string `short:"t" placeholder:"NAME" help:"Only this topic; may be given again. All by default."`
	Output string   `short:"o" enum:"text,json" default:"text" help:"Form of the result: text or json."`
	JSON   bool     `name:"json" help:"The same as -o json."`
}

func (d *logDir) json() bool { return d.JSON || d.Output == "json" }

// topics returns the names of the topics that were asked for.
func (d *logDir) topics() ([]string, error) {
	there, err := segfile.Topics(nil, d.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &failure{code: exitUsage, what: fmt.Sprintf("there is no directory %q", d.Dir), fix: "name the data directory: what Config.Dir or --dir was", err: err}
	}
	if err != nil {
		if info, serr := os.Stat(d.Dir); serr == nil && !info.IsDir() {
			return nil, &failure{code: exitUsage, what: fmt.Sprintf("%q is no directory", d.Dir), fix: "name the data directory: the one that holds the file FORMAT", err: err}
		}
		return nil, err
	}
	for _, name := range d.Topic {
		if !slices.Contains(there, name) {
			return nil, &failure{code: exitUsage, what: fmt.Sprintf("there is no topic %q in %s", name, d.Dir),
				fix: "topics there are: " + strings.Join(there, ", ")}
		}
	}
	if len(d.Topic) > 0 {
		return d.Topic, nil
	}
	if len(there) == 0 {
		return nil, &failure{code: exitUsage, what: fmt.Sprintf("there is no topic in %s", d.Dir), fix: "name the directory that holds the file FORMAT"}
	}
	return there, nil
}

// each calls fn with each topic. With all it goes on behind one that cannot be
// looked at, and returns all errors.
func (d *logDir) each(all bool, fn func(*segfile.Inspection) error) error {
	topics, err := d.topics()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range topics {
		in, err := segfile.Inspect(segfile.InspectConfig{Dir: d.Dir, Topic: name})
		if err == nil {
			err = fn(in)
		}
		if err != nil {
			errs = append(errs, err)
			if !all || errors.Is(err, context.Canceled) {
				break
			}
		}
	}
	return errors.Join(errs...)
}

// told gives an error the words that are right for a data directory that was
// named, in place of those for one that --dir makes.
func (d *logDir) told(err error) error {
	var f *failure
	switch {
	case readerGone(err):
		return nil
	case err == nil, errors.As(err, &f), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, penstock.ErrLocked):
		return &failure{code: exitInUse, what: err.Error(), why: "two writers on one data directory would destroy it", fix: "stop the process that uses the topic, and try again", err: err}
	case errors.Is(err, penstock.ErrCorrupt):
		return &failure{code: exitDamaged, what: err.Error(), why: "acknowledged data is never skipped silently",
			fix: "keep a copy of the directory, then see what a repair would lose: penstock repair " + d.Dir, err: err}
	case errors.Is(err, fs.ErrPermission):
		return &failure{code: exitFailed, what: err.Error(), fix: "run it as the user whose process writes there", err: err}
	case errors.Is(err, penstock.ErrDiskFull):
		return &failure{code: exitFailed, what: err.Error(), fix: "make room for a copy of the files that are changed; what was not done is done by the same command", err: err}
	}
	return err
}

// readerGone reports whether nothing happened but that who read standard output
// has gone, as head does when it has seen enough.
func readerGone(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(err error) bool { return !readerGone(err) })
	}
	return errors.Is(err, syscall.EPIPE)
}

// onePartition says whether --partition names one that there is not; -1 is all.
func onePartition(topic string, partition, partitions int) error {
	if partition < partitions && partition >= -1 {
		return nil
	}
	return &failure{code: exitUsage, what: fmt.Sprintf("--partition %d: topic %q has partitions 0 to %d", partition, topic, partitions-1),
		fix: "leave --partition out for all of them"}
}

// count writes a number with its noun.
func count[N int | uint64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprint(n, " ", noun)
}

// retryLog is the log of the parked events of a group: a data directory inside
// of the topic's, with a topic that has the name of the group.
type retryLog struct {
	dir   string
	group string
	path  string // below the data directory, for people
}

// retryLogs finds the retry logs of a topic, and those that were made and are
// gone.
func retryLogs(dir, topic string) (there []retryLog, gone []string) {
	root := filepath.Join(dir, segfile.EscapeName(topic))
	parts, _ := os.ReadDir(filepath.Join(root, "retry")) // a topic without parked events has none
	for _, part := range parts {
		in := filepath.Join(root, "retry", part.Name())
		groups, err := segfile.Topics(nil, in)
		if err != nil {
			continue
		}
		for _, group := range groups {
			there = append(there, retryLog{dir: in, group: group, path: "retry/" + part.Name() + "/" + segfile.EscapeName(group)})
		}
	}
	marks, _ := os.ReadDir(filepath.Join(root, "retry-made"))
	for _, mark := range marks {
		part, group, _ := strings.Cut(mark.Name(), ".")
		path := "retry/" + part + "/" + group
		if !slices.ContainsFunc(there, func(l retryLog) bool { return l.path == path }) {
			gone = append(gone, path)
		}
	}
	return there, gone
}

// progress shows how far a long look is: on a terminal in one line that is
// written again, else in a line every ten seconds.
type progress struct {
	to    io.Writer
	again bool // the line is written again
	next  time.Time
	shown bool
}

func newProgress(to io.Writer) *progress {
	p := &progress{to: to, again: isTerminal(to) && plainWanted() == ""}
	p.next = time.Now().Add(p.every())
	return p
}

func (p *progress) every() time.Duration {
	if p.again {
		return 200 * time.Millisecond
	}
	return 10 * time.Second
}

func (p *progress) show(s segfile.Progress) {
	now := time.Now()
	if now.Before(p.next) {
		return
	}
	p.next = now.Add(p.every())
	begin, end := "", "\n"
	if p.again {
		begin, end, p.shown = "\r\x1b[K", "", true
	}
	fmt.Fprintf(p.to, "%s%s: partition %d of %d, %s of %s%s", begin, s.Topic, s.Partition+1, s.Partitions, size(s.Done), size(s.Total), end)
}

// end removes the line.
func (p *progress) end() {
	if p.shown {
		fmt.Fprint(p.to, "\r\x1b[K")
	}
}

// size writes a number of bytes for people.
func size(b penstock.Bytes) string {
	switch {
	case b >= penstock.GiB:
		return fmt.Sprintf("%.1f GiB", float64(b)/float64(penstock.GiB))
	case b >= penstock.MiB:
		return fmt.Sprintf("%.1f MiB", float64(b)/float64(penstock.MiB))
	case b >= penstock.KiB:
		return fmt.Sprintf("%.1f KiB", float64(b)/float64(penstock.KiB))
	}
	return fmt.Sprintf("%d B", int64(b))
}

// encode writes one JSON value and a line feed. Payloads are not HTML.
func encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
