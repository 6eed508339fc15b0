package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
)

type repairCmd struct {
	logDir
	Partition int    `short:"p" default:"-1" help:"Only this partition; all by default."`
	CutTail   bool   `xor:"how" help:"End each damaged partition where its damage begins. This is what is planned by default."`
	Salvage   string `xor:"how" placeholder:"DIR" help:"Copy what can be read into another data directory, and leave this one as it is."`
	Router    string `placeholder:"ID" help:"What a topic.json says that is made anew: the id of the topic's router, for example hash/1."`
	Codec     string `placeholder:"ID" help:"The id of its codec, for example json/1."`
	Tenant    string `placeholder:"NAME" help:"Its tenant."`
	Yes       bool   `help:"Do it. Without it nothing is changed: the plan is printed."`
}

// Help is shown by --help.
func (repairCmd) Help() string {
	return `Says what a repair would lose, and with --yes does it; the topic must not be in use then.
--cut-tail makes a partition take events again: everything from its damage on goes, also what is whole, and the files
are kept in its folder quarantine. --salvage loses only what cannot be read, and gives the events new offsets.
A topic.json that is damaged or lost is made anew from what is left of the topic, before the rest can be looked at;
what nothing tells is assumed, and said. A topic without any segment needs --codec. With --salvage it is not made.
Exit codes: 0, also when nothing needs a repair; 2, something has to be named; 6, damage that no repair mends; 7, in use.
The retry log of a group is a data directory of its own: TOPIC/retry/p00000 and so on.

Example:

    penstock repair data --salvage rescued --yes`
}

// groupRepaired is what becomes of the position of a group, in JSON.
type groupRepaired struct {
	Group string          `json:"group"`
	From  penstock.Offset `json:"from"`
	To    penstock.Offset `json:"to"`
	Error string          `json:"error,omitempty"`
}

// lostRange is a run of events that cannot be read, in JSON.
type lostRange struct {
	First penstock.Offset `json:"first"`
	Last  penstock.Offset `json:"last"`
	Text  string          `json:"text"`
}

// repaired is what a repair does to a partition, in JSON.
type repaired struct {
	Topic     string          `json:"topic"`
	Partition int             `json:"partition"`
	Done      bool            `json:"done"`
	Damage    string          `json:"damage,omitempty"`
	Keep      penstock.Offset `json:"keep"`
	End       penstock.Offset `json:"end"`
	Readable  uint64          `json:"lost_readable"`
	Files     []string        `json:"files"`
	Copied    uint64          `json:"copied"`
	Lost      []lostRange     `json:"lost"`
	Groups    []groupRepaired `json:"groups"`
	Strays    []string        `json:"strays,omitempty"`
	Renamed   []renamed       `json:"renamed,omitempty"`
	Made      []string        `json:"made,omitempty"`
	Assumed   []string        `json:"assumed,omitempty"`
	made      bool            // of a topic.json that is made anew
	kept      string
}

// renamed is a file that gets its own name back, in JSON.
type renamed struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Run plans, and with --yes repairs.
func (c *repairCmd) Run(e *env) (err error) {
	defer func() { err = c.told(err) }()
	if c.Partition >= 0 && c.Salvage != "" {
		return &failure{code: exitUsage, what: "--partition goes with --cut-tail only", fix: "a salvage copies whole topics; name them with --topic"}
	}
	topics, err := c.topics()
	if err != nil {
		return err
	}
	if c.Partition != -1 {
		err := c.each(true, func(in *segfile.Inspection) error {
			return onePartition(in.About().Topic, c.Partition, in.About().Partitions)
		})
		if f := (*failure)(nil); errors.As(err, &f) { // one that cannot be looked at is what is to be repaired
			return f
		}
	}
	all, failed := []repaired{}, []error(nil)
	for _, topic := range topics {
		rows, err := c.topic(e, topic)
		all = append(all, rows...)
		if err != nil { // what was done before is told
			failed = append(failed, err)
		}
		if e.ctx.Err() != nil {
			break
		}
	}
	err = errors.Join(failed...)
	if c.json() {
		result := map[string]any{"done": c.Yes, "partitions": all}
		if err != nil {
			result["error"] = err.Error()
		}
		return errors.Join(err, encode(e.stdout, result))
	}
	return errors.Join(err, c.write(e, all, err == nil))
}

// rebuild makes a topic.json anew that is damaged.
func (c *repairCmd) rebuild(config segfile.InspectConfig) ([]repaired, error) {
	r, err := segfile.RebuildTopic(segfile.RebuildConfig{InspectConfig: config, Router: c.Router, Codec: c.Codec, Tenant: c.Tenant, Apply: c.Yes})
	var field *penstock.FieldError
	if errors.As(err, &field) {
		return nil, &failure{code: exitUsage, what: err.Error(), fix: "name it with --" + strings.ToLower(field.Field), err: err}
	}
	if err != nil || r == nil {
		return nil, err
	}
	return []repaired{{
		Topic: config.Topic, Partition: -1, Done: c.Yes, Files: []string{}, Lost: []lostRange{}, Groups: []groupRepaired{},
		Made:    []string{fmt.Sprintf("topic.json: uuid %s, %d partitions, router %q, codec %q, tenant %q", r.UUID, r.Partitions, r.Router, r.Codec, r.Tenant)},
		Assumed: r.Assumed, made: true, kept: r.Kept,
	}}, nil
}

func (c *repairCmd) topic(e *env, topic string) (rows []repaired, err error) {
	config := segfile.InspectConfig{Dir: c.Dir, Topic: topic}
	if c.Salvage == "" {
		if rows, err = c.rebuild(config); err != nil || rows != nil && !c.Yes {
			return rows, err // the rest cannot be looked at before
		}
	}
	if c.Salvage != "" {
		salvaged, err := segfile.Salvage(e.ctx, segfile.SalvageConfig{InspectConfig: config, To: c.Salvage, Apply: c.Yes})
		for _, s := range salvaged {
			row := repaired{Topic: topic, Partition: s.Partition, Done: c.Yes, Copied: s.Events, Groups: groupsOf(s.Groups), Files: []string{}, Lost: []lostRange{}}
			for _, l := range s.Lost {
				row.Lost = append(row.Lost, lostRange{l.First, l.Last, l.Error()})
			}
			rows = append(rows, row)
		}
		return rows, err
	}
	done, err := segfile.CutTail(e.ctx, segfile.RepairConfig{InspectConfig: config, Partition: c.Partition, Apply: c.Yes})
	for _, r := range done {
		row := repaired{
			Topic: topic, Partition: r.Partition, Done: c.Yes, Keep: r.Keep, End: r.End, Readable: r.Readable,
			Files: append([]string{}, r.Files...), Groups: groupsOf(r.Groups), Lost: []lostRange{},
			Strays: r.Strays, Made: r.Made,
		}
		for _, f := range r.Renamed {
			row.Renamed = append(row.Renamed, renamed(f))
		}
		if r.Damage != nil {
			row.Damage = r.Damage.Error()
		}
		rows = append(rows, row)
	}
	return rows, err
}

func groupsOf(groups []segfile.GroupRepair) []groupRepaired {
	all := []groupRepaired{}
	for _, g := range groups {
		j := groupRepaired{Group: g.Name, From: g.From, To: g.To}
		if g.Err != nil {
			j.Error = g.Err.Error()
		}
		all = append(all, j)
	}
	return all
}

// losses tells people what cannot be read, and what is mended without a loss.
func (r *repaired) losses(b *strings.Builder) {
	for _, l := range r.Lost {
		if l.First == l.Last { // one event, or it is not known how many
			fmt.Fprintf(b, "  lost: %s\n", l.Text)
			continue
		}
		fmt.Fprintf(b, "  lost: %d events, %d to %d: %s\n", l.Last-l.First+1, l.First, l.Last, l.Text)
	}
	for _, f := range r.Renamed {
		fmt.Fprintf(b, "  %s gets its own name back: %s\n", f.From, f.To)
	}
	if len(r.Strays) > 0 {
		fmt.Fprintf(b, "  moved to quarantine, no event goes with them: %s\n", strings.Join(r.Strays, ", "))
	}
	for _, name := range r.Made {
		fmt.Fprintf(b, "  the directory %s is made\n", name)
	}
}

// rebuilt tells people of a topic.json.
func (r *repaired) rebuilt(b *strings.Builder) {
	fmt.Fprintf(b, "%s:\n  made anew: %s\n", r.Topic, r.Made[0])
	for _, a := range r.Assumed {
		fmt.Fprintf(b, "  assumed: %s\n", a)
	}
	if r.kept != "" {
		fmt.Fprintf(b, "  the damaged file is kept as %s\n", r.kept)
	}
	if !r.Done {
		b.WriteString("  what else there is to repair can be told when it is there\n")
	}
}

// write tells people.
func (c *repairCmd) write(e *env, all []repaired, whole bool) error {
	var b strings.Builder
	for _, r := range all {
		if r.made {
			r.rebuilt(&b)
			continue
		}
		fmt.Fprintf(&b, "%s, partition %d:\n", r.Topic, r.Partition)
		if c.Salvage != "" {
			fmt.Fprintf(&b, "  %d events are copied, with offsets from 0\n", r.Copied)
		}
		r.losses(&b)
		if r.Damage != "" {
			fmt.Fprintf(&b, "  damage: %s\n  the log ends at %d instead of %d: %d events go, of which %d can still be read\n  originals kept in quarantine: %s\n",
				r.Damage, r.Keep, r.End, r.End-r.Keep, r.Readable, strings.Join(r.Files, ", "))
		}
		for _, g := range r.Groups {
			switch {
			case g.Error != "":
				fmt.Fprintf(&b, "  group %q begins at %d: its position cannot be read: %s\n", g.Group, g.To, g.Error)
			case g.From != g.To:
				fmt.Fprintf(&b, "  group %q goes from %d to %d\n", g.Group, g.From, g.To)
			}
		}
	}
	switch {
	case len(all) == 0 && !whole:
	case len(all) == 0:
		b.WriteString("nothing to repair\n")
	case !c.Yes:
		if slices.ContainsFunc(all, func(r repaired) bool { return r.Readable > 0 }) {
			b.WriteString("--salvage DIR would keep what can still be read, under new offsets in another directory\n")
		}
		b.WriteString("nothing was changed; --yes does it\n")
	case whole:
		b.WriteString("done\n")
	}
	_, err := fmt.Fprint(e.stdout, b.String())
	return err
}
