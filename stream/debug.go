package stream

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/debugpage"
)

// DebugHandler returns a handler that shows every open provider of the process:
// for each queue what was read, delivered and committed, how far it is behind
// in events and in seconds, its rates, and in words why it does not move; and
// the subscriptions that something is outstanding for, the worst ones first. It
// is the sister of queue.DebugHandler and answers like it: GET and HEAD, a page
// for people, JSON with ?format=json or by the Accept header, Prometheus
// metrics below a path that ends with /metrics. ?provider=NAME shows one
// provider, ?refresh=N makes the page load itself again every N seconds. Fields
// and metrics are listed in docs/observability.md.
//
//	mux.Handle("/debug/streams/", stream.DebugHandler())
//
// [Open] adds a provider and Close takes it out. The handler changes nothing and
// waits at most a second for an agent that does not answer. It has no
// authentication, and shows names of streams and subscriptions and the text of
// errors: serve it on loopback, or behind your own. Page and JSON take half a
// second when nobody has looked for a minute, because rates are told between
// two looks.
func DebugHandler() http.Handler { return debugHandler(openProviders.list) }

func debugHandler(list func() []*Provider) http.Handler {
	return &debugpage.Handler{
		Title: "penstock streams", One: "provider", All: "all providers", None: "no open provider has that name",
		Look: func(ctx context.Context, q debugpage.Request) debugpage.View {
			v := &debugView{}
			v.look(ctx, list, q)
			if q.Only != "" && len(v.providers) == 0 {
				return nil
			}
			return v
		},
	}
}

// debugView is what is shown.
type debugView struct {
	now       time.Time
	providers []providerView
}

type providerView struct {
	name   string
	copy   int // 0, or n for the n-th open one of its name, from the second on
	state  State
	queues []QueueStats
	busy   []busyView // subscriptions, and streams that wait for theirs; the worst first
}

// busyView is something in a stream that something is outstanding for.
type busyView struct {
	stream *StreamState
	sub    *SubscriptionState // nil: the stream itself
}

func (b *busyView) condition() Condition {
	if b.sub == nil {
		return b.stream.Condition
	}
	return b.sub.Condition
}

func (b *busyView) why() string {
	if b.sub == nil {
		return b.stream.Waiting
	}
	return b.sub.Waiting
}

func (b *busyView) lag() (uint64, time.Duration) {
	if b.sub == nil {
		return b.stream.Lag, b.stream.LagTime
	}
	return b.sub.Lag, b.sub.LagTime
}

// busyPerQueue bounds the streams of a queue that are looked at.
const busyPerQueue = 200

// look takes the picture, and takes it again when the first says that nobody
// has looked for long and rates are wanted.
func (v *debugView) look(ctx context.Context, list func() []*Provider, q debugpage.Request) {
	v.take(list(), q)
	if q.Metrics || !v.stale() {
		return
	}
	timer := time.NewTimer(debugpage.Pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		v.take(list(), q)
	case <-ctx.Done():
	}
}

func (v *debugView) take(all []*Provider, q debugpage.Request) {
	v.now, v.providers = time.Now(), nil
	last, n := "", 0
	for i, p := range all {
		if n++; i == 0 || p.config.Name != last {
			last, n = p.config.Name, 1
		}
		if q.Only != "" && p.config.Name != q.Only {
			continue
		}
		s := providerView{name: p.config.Name, queues: p.Stats()}
		s.state, _ = p.State()
		if n > 1 {
			s.copy = n
		}
		if !q.Metrics {
			s.busy = busiest(p.Inspect(true, busyPerQueue))
		}
		v.providers = append(v.providers, s)
	}
}

// busiest lists what something is outstanding for, the worst first.
func busiest(streams []StreamState) (out []busyView) {
	for i := range streams {
		s := &streams[i]
		if s.Waiting != "" {
			out = append(out, busyView{stream: s})
		}
		for j := range s.Subscriptions {
			if sub := &s.Subscriptions[j]; sub.Waiting != "" {
				out = append(out, busyView{s, sub})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b busyView) int {
		m, _ := a.lag()
		n, _ := b.lag()
		return cmp.Or(-cmp.Compare(a.condition().Severity(), b.condition().Severity()), -cmp.Compare(m, n))
	})
	return out
}

// stale reports whether a rate is not known, or of long ago.
func (v *debugView) stale() bool {
	for i := range v.providers {
		for j := range v.providers[i].queues {
			if q := &v.providers[i].queues[j]; q.Running && (debugpage.Rates{Over: q.Over}).Stale() {
				return true
			}
		}
	}
	return false
}

// Time implements debugpage.View.
func (v *debugView) Time() time.Time { return v.now }

// Text implements debugpage.View; there are no further formats.
func (v *debugView) Text(string) string { return "" }

// Verdict implements debugpage.View. What a queue's reason names is one of its
// subscriptions, and counts once.
func (v *debugView) Verdict() (penstock.Severity, string) {
	worst, needed, queues, say := penstock.Fine, 0, 0, ""
	note := func(s penstock.Severity, text string) {
		if s > worst {
			worst, say = s, text
		}
	}
	for i := range v.providers {
		p := &v.providers[i]
		ofQueues, ofSubs := 0, 0
		for j := range p.queues {
			q := &p.queues[j]
			queues++
			s := q.Condition.Severity()
			if s >= penstock.Warning {
				ofQueues++
			}
			note(s, "queue "+q.Queue.String()+" of provider "+p.name+": "+q.Reason)
		}
		for j := range p.busy {
			s := p.busy[j].condition().Severity()
			if s >= penstock.Warning {
				ofSubs++
			}
			note(s, p.busy[j].name()+" of provider "+p.name+": "+p.busy[j].why())
		}
		needed += max(ofQueues, ofSubs)
	}
	switch {
	case len(v.providers) == 0:
		return penstock.Fine, "No provider is open."
	case worst < penstock.Warning:
		return worst, debugpage.Count(uint64(len(v.providers)), "provider", "providers") + ", " + debugpage.Count(uint64(queues), "queue", "queues") + ": nothing needs you."
	case needed == 1:
		return worst, "1 thing needs you. " + debugpage.Upper(say) + "."
	}
	return worst, debugpage.Grouped(uint64(needed)) + " things need you. The worst: " + say + "."
}

func (b *busyView) name() string {
	if b.sub == nil {
		return "stream " + b.stream.Stream.String()
	}
	return "subscription " + b.sub.Name + " of stream " + b.stream.Stream.String()
}

// maxRowsOnPage bounds the second table of each provider; the JSON has all that
// were looked at.
const maxRowsOnPage = 200

// Body implements debugpage.View.
func (v *debugView) Body(m debugpage.Markup) {
	for i := range v.providers {
		p := &v.providers[i]
		title := p.name
		if p.copy > 0 {
			title += " (" + debugpage.Grouped(uint64(p.copy)) + ")"
		}
		m.Element("h2", "", title)
		m.Raw("<dl>")
		m.Pair("agents", debugpage.Spoken(p.state.String()))
		m.Raw("</dl>\n")
		p.writeQueues(m)
		p.writeBusy(m)
	}
}

func (p *providerView) writeQueues(m debugpage.Markup) {
	m.Table("Queues", "state", "queue", "why", "#read/s", "#delivered/s", "#lag", "#oldest", "#unread", "#newest", "#committed",
		"#cached", "#streams", "#subscriptions", "#failed", "#skipped", "#dead letters", "#faulted", "#missed", "#refused", "#empty")
	for i := range p.queues {
		q := &p.queues[i]
		m.Row(q.Condition.Severity(), q.Condition.String())
		m.Element("td", "name", q.Queue.String())
		m.Element("td", "why", debugpage.Bounded(q.Reason))
		unread := "?"
		if q.Unread >= 0 {
			unread = debugpage.Grouped(uint64(q.Unread))
		}
		m.Numbers(q.rate(q.ReadPerSecond), q.rate(q.DeliveredPerSecond), debugpage.Grouped(q.Lag), age(q.LagTime), unread, place(q.Newest), place(q.Checkpoint),
			debugpage.Grouped(uint64(q.Cached)), debugpage.Grouped(uint64(q.Streams)), debugpage.Grouped(uint64(q.Subscriptions)),
			debugpage.Grouped(q.Failed), debugpage.Grouped(q.Skipped), debugpage.Grouped(q.DeadLettered), debugpage.Grouped(q.Faulted), debugpage.Grouped(q.Missed), debugpage.Grouped(q.Refused), debugpage.Grouped(q.Empty))
		m.Raw("</tr>\n")
	}
	m.EndTable()
}

func (p *providerView) writeBusy(m debugpage.Markup) {
	m.Table("Subscriptions that something is outstanding for", "state", "stream", "subscription", "why",
		"#lag", "#oldest", "#newest", "#delivered", "#committed", "#in flight", "#attempts", "#settled")
	for i := range p.busy {
		if i == maxRowsOnPage {
			m.Raw(`<tr><td colspan="12">`)
			m.Text(debugpage.Grouped(uint64(len(p.busy)-i)) + " more; the JSON has them.")
			m.Raw("</td></tr>\n")
			break
		}
		b := &p.busy[i]
		m.Row(b.condition().Severity(), b.condition().String())
		m.Element("td", "name", b.stream.Stream.String())
		sub := SubscriptionState{}
		if b.sub != nil {
			sub = *b.sub
		}
		m.Element("td", "name", sub.Name)
		m.Element("td", "why", debugpage.Bounded(b.why()))
		lag, oldest := b.lag()
		m.Numbers(debugpage.Grouped(lag), age(oldest), place(b.stream.Newest), place(sub.Offered), place(sub.Processed),
			debugpage.Grouped(uint64(sub.InFlight)), debugpage.Grouped(uint64(sub.Attempts)), debugpage.Grouped(sub.Settled))
		m.Raw("</tr>\n")
	}
	m.EndTable()
}
