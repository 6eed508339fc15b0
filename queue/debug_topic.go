package queue

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/debugpage"
)

func sortRows(rows []groupRow) {
	slices.SortStableFunc(rows, func(a, b groupRow) int {
		return cmp.Or(compareSeverity(a.group, b.group), cmp.Compare(a.topic, b.topic))
	})
}

// writeTopic writes the section of a topic.
func (v *debugView) writeTopic(m debugpage.Markup, i int, rows []groupRow) {
	s := &v.topics[i]
	m.Raw(`<section id="t`, strconv.Itoa(i), `">`)
	m.Raw("<h2>topic ")
	m.Text(v.topicName(i))
	m.Raw(` <span class="state `, s.State.Severity().String(), `">`)
	m.Text(debugpage.Badge(s.State.Severity()))
	m.Raw("</span></h2>")
	m.Element("p", "dim", s.Why)
	m.Raw("<dl>")
	m.Pair("appended", debugpage.Grouped(s.Produced))
	m.Pair("in · out", rateText(s.Rates, s.In)+" · "+rateText(s.Rates, s.Out))
	if s.Over > 0 {
		m.Pair("rates are the mean of", debugpage.Span(s.Over))
	}
	v.writeCapacity(m, s)
	m.Pair("waiting producers", count0(s.WaitingProducers))
	m.Pair("refused", debugpage.Grouped(s.Refused))
	m.Pair("storage", s.Storage)
	m.Pair("open for", debugpage.Span(s.Age))
	m.Raw("</dl>\n")
	v.writePartitions(m, s)
	for _, r := range rows {
		if r.topic == i {
			v.writeGroup(m, r)
		}
	}
	m.Raw("</section>\n")
}

// writeCapacity writes how full the topic is.
func (v *debugView) writeCapacity(m debugpage.Markup, s *Stats) {
	gauge := func(name, value string, used, limit float64) {
		m.Raw("<div>")
		m.Element("dt", "", name)
		m.Raw("<dd>")
		m.Text(value)
		if limit > 0 {
			share := min(1, max(0, used/limit))
			m.Raw(`<meter min="0" max="1" low="0.7" high="0.95" optimum="0" value="`, strconv.FormatFloat(share, 'f', 4, 64), `">`)
			m.Text(strconv.FormatFloat(share*100, 'f', 0, 64) + " %")
			m.Raw("</meter>")
		}
		m.Raw("</dd></div>")
	}
	limit := "no limit"
	if s.Capacity > 0 {
		limit = "of " + debugpage.Grouped(uint64(s.Capacity)) + ", " + s.WhenFull.String() + " when full"
	}
	gauge("not committed by all", debugpage.Grouped(s.Retained)+" "+limit, float64(s.Retained), float64(s.Capacity))
	if s.CapacityDisk > 0 {
		gauge("disk used", debugpage.Size(s.UsedDisk)+" of "+debugpage.Size(s.CapacityDisk), float64(s.UsedDisk), float64(s.CapacityDisk))
	}
	if s.CapacityBytes > 0 {
		gauge("bytes used", debugpage.Size(s.UsedBytes)+" of "+debugpage.Size(s.CapacityBytes), float64(s.UsedBytes), float64(s.CapacityBytes))
	}
	if s.Storage == "disk" {
		total := penstock.Bytes(0)
		for i := range s.Partitions {
			total += s.Partitions[i].Bytes
		}
		m.Pair("log on disk", debugpage.Size(total))
	}
}

// writePartitions writes the partitions of a topic, folded when there are many.
func (v *debugView) writePartitions(m debugpage.Markup, s *Stats) {
	faults := 0
	for i := range s.Partitions {
		if s.Partitions[i].Fault != nil {
			faults++
		}
	}
	m.Raw("<details")
	if faults > 0 {
		m.Raw(` open=""`)
	}
	m.Raw(">")
	title := debugpage.Count(uint64(len(s.Partitions)), "partition", "partitions")
	if faults > 0 {
		title += ", " + debugpage.Grouped(uint64(faults)) + " faulted"
	}
	m.Element("summary", "", title)
	m.Table("Partitions of topic "+s.Name, "#partition", "#earliest", "#end", "#not committed by all", "furthest behind", "fault")
	for i := range s.Partitions {
		if i == maxPartitionsOfPage {
			m.Raw(`<tr><td colspan="6">`)
			m.Text(debugpage.Grouped(uint64(len(s.Partitions)-i)) + " more partitions; the JSON has them.")
			m.Raw("</td></tr>\n")
			break
		}
		p := &s.Partitions[i]
		m.Raw("<tr>")
		m.Numbers(strconv.Itoa(i), debugpage.Grouped(uint64(p.Earliest)), debugpage.Grouped(uint64(p.End)), debugpage.Grouped(p.Retained))
		m.Element("td", "name", furthestBehind(s, i))
		fault := ""
		if p.Fault != nil {
			fault = debugpage.ErrorText(p.Fault)
		}
		m.Element("td", "why alarm", fault)
		m.Raw("</tr>\n")
	}
	m.EndTable()
	m.Raw("</details>\n")
}

// furthestBehind names the group with the largest lag in a partition.
func furthestBehind(s *Stats, partition int) string {
	name, lag := "", uint64(0)
	for _, list := range [][]GroupStats{s.Groups, s.Stored} {
		for i := range list {
			if p := list[i].Partitions[partition]; p.Lag > lag {
				name, lag = list[i].Name, p.Lag
			}
		}
	}
	if lag == 0 {
		return ""
	}
	return name + ", by " + debugpage.Grouped(lag)
}

// writeGroup writes what is known of a group, unfolded when somebody is needed.
func (v *debugView) writeGroup(m debugpage.Markup, r groupRow) {
	g := r.group
	severity := g.Severity()
	m.Raw(`<details id="`, r.id, `"`)
	if severity >= Warning {
		m.Raw(` open=""`)
	}
	m.Raw("><summary><h3>")
	m.Text(g.Name)
	m.Raw(`</h3> <span class="state `, severity.String(), `">`)
	m.Text(debugpage.Spoken(g.State.String()))
	m.Raw("</span> ")
	m.Element("span", "", g.Why)
	m.Raw("</summary>\n<dl>")
	run := &g.Run
	use := g.Use
	if run.Running {
		use += ", running"
	}
	m.Pair("used by", use)
	consumers := count0(g.Consumers)
	if g.ResizingTo > 0 {
		consumers += ", a Resize to " + strconv.Itoa(g.ResizingTo) + " waits"
	}
	m.Pair("consumers", consumers)
	m.Pair("lag", debugpage.Grouped(g.Lag)+", oldest "+lagText(g))
	m.Pair("committed", debugpage.Grouped(g.Committed))
	m.Pair("drains in", drainText(g))
	m.Pair("delivered · failed", debugpage.Grouped(run.Delivered)+" · "+debugpage.Grouped(run.Failed))
	m.Pair("in hand · retrying", count0(run.InHand)+" · "+count0(run.Waiting))
	m.Pair("dead letters · dropped", debugpage.Grouped(run.DeadLettered)+" · "+debugpage.Grouped(run.Dropped))
	if g.Discarded+g.Redriven > 0 {
		m.Pair("discarded · redriven", debugpage.Grouped(g.Discarded)+" · "+debugpage.Grouped(g.Redriven))
	}
	if k := g.LastSkip; k != nil {
		m.Pair("skipped by limits of the topic", fmt.Sprintf("%s, last in partition %d from %d to %d", debugpage.Grouped(g.Skipped), k.Partition, k.From, k.To))
	}
	m.Pair("batches by count · bytes · linger · retry", debugpage.Grouped(run.FlushedByCount)+" · "+debugpage.Grouped(run.FlushedByBytes)+" · "+
		debugpage.Grouped(run.FlushedByLinger)+" · "+debugpage.Grouped(run.Retries))
	if run.Batches > 0 {
		m.Pair("time per call of the handler", debugpage.Span(run.HandlerTime/time.Duration(run.Batches)))
	}
	if g.Rate > 0 {
		m.Pair("rate limit", debugpage.Rate(g.Rate))
	}
	if len(g.PausedPartitions) > 0 {
		m.Pair("paused partitions", partitionList(g.PausedPartitions))
	}
	v.writeTrouble(m, g)
	m.Raw("</dl>\n")
	v.writeWaits(m, g)
	v.writeWorst(m, g)
	m.Raw("</details>\n")
}

// writeTrouble writes what is parked and what failed.
func (v *debugView) writeTrouble(m debugpage.Markup, g *GroupStats) {
	if p := &g.Parked; p.Keys > 0 || p.Events > 0 {
		text := debugpage.Count(uint64(p.Keys), "key", "keys") + ", " + debugpage.Count(uint64(p.Events), "event", "events") + ", " + debugpage.Size(p.Bytes)
		if !p.Oldest.IsZero() {
			text += ", the longest for " + debugpage.Span(max(0, v.now.Sub(p.Oldest)))
		}
		if p.Reason != "" {
			text += ": " + p.Reason
		}
		m.Pair("parked", text)
	}
	if e := g.LastError; e != nil {
		where := ""
		if e.Partition >= 0 {
			where = fmt.Sprintf(", partition %d offset %d", e.Partition, e.Offset)
		}
		m.Pair("last error", ago(v.now, e.Time)+", "+e.Kind+where+": "+e.Text)
	}
	if g.Run.EndedBy != "" {
		m.Pair("Run ended", ago(v.now, g.Run.Ended)+": "+g.Run.EndedBy)
	}
}

// writeWaits writes the calls that run, and what is in the way of a partition.
func (v *debugView) writeWaits(m debugpage.Markup, g *GroupStats) {
	if len(g.Run.Calls) > 0 {
		m.Table("Calls of the handler that run now", "#partition", "#offset", "#events", "#for")
		for _, c := range g.Run.Calls {
			m.Raw("<tr>")
			m.Numbers(strconv.Itoa(c.Partition), debugpage.Grouped(uint64(c.Offset)), count0(c.Events), debugpage.Span(max(0, v.now.Sub(c.Since))))
			m.Raw("</tr>\n")
		}
		m.EndTable()
	}
	if len(g.Run.Blocked) == 0 {
		return
	}
	m.Table("Partitions that wait for an event in their way", "#partition", "#offset", "#attempts", "#due in", "why")
	for i, b := range g.Run.Blocked {
		if i == maxPartitionsOfPage {
			m.Raw(`<tr><td colspan="5">`)
			m.Text(debugpage.Grouped(uint64(len(g.Run.Blocked)-i)) + " more; the JSON has them.")
			m.Raw("</td></tr>\n")
			break
		}
		due := "–"
		if wait := b.Due.Sub(v.now); !b.Due.IsZero() {
			due = debugpage.Span(max(0, wait))
		}
		m.Raw("<tr>")
		m.Numbers(strconv.Itoa(b.Partition), debugpage.Grouped(uint64(b.Offset)), count0(b.Attempts), due)
		m.Element("td", "why", b.Reason)
		m.Raw("</tr>\n")
	}
	m.EndTable()
}

// writeWorst writes the partitions in which the group is behind the most.
func (v *debugView) writeWorst(m debugpage.Markup, g *GroupStats) {
	var worst []int
	for i := range g.Partitions {
		if g.Partitions[i].Lag > 0 {
			worst = append(worst, i)
		}
	}
	if len(worst) == 0 {
		return
	}
	slices.SortStableFunc(worst, func(a, b int) int { return cmp.Compare(g.Partitions[b].Lag, g.Partitions[a].Lag) })
	caption := "Partitions with a lag, " + debugpage.Grouped(uint64(len(worst))) + " of " + debugpage.Grouped(uint64(len(g.Partitions)))
	if len(worst) > worstPartitions {
		caption += "; the " + strconv.Itoa(worstPartitions) + " largest"
		worst = worst[:worstPartitions]
	}
	m.Table(caption, "#partition", "#committed", "#end", "#lag", "#oldest")
	for _, i := range worst {
		p := &g.Partitions[i]
		oldest := "–"
		if p.LagTime > 0 {
			oldest = debugpage.Span(p.LagTime)
		}
		m.Raw("<tr>")
		m.Numbers(strconv.Itoa(i), debugpage.Grouped(uint64(p.Committed)), debugpage.Grouped(uint64(p.End)), debugpage.Grouped(p.Lag), oldest)
		m.Raw("</tr>\n")
	}
	m.EndTable()
}
