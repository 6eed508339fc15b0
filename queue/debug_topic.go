package queue

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
)

func sortRows(rows []groupRow) {
	slices.SortStableFunc(rows, func(a, b groupRow) int {
		return cmp.Or(compareSeverity(a.group, b.group), cmp.Compare(a.topic, b.topic))
	})
}

// writeTopic writes the section of a topic.
func (v *debugView) writeTopic(m markup, i int, rows []groupRow) {
	s := &v.topics[i]
	m.raw(`<section id="t`, strconv.Itoa(i), `">`)
	m.raw("<h2>topic ")
	m.text(v.topicName(i))
	m.raw(` <span class="state `, s.State.Severity().String(), `">`)
	m.text(badge(s.State.Severity()))
	m.raw("</span></h2>")
	m.element("p", "dim", s.Why)
	m.raw("<dl>")
	m.pair("appended", grouped(s.Produced))
	m.pair("in · out", rateText(s.Rates, s.In)+" · "+rateText(s.Rates, s.Out))
	if s.Over > 0 {
		m.pair("rates are the mean of", span(s.Over))
	}
	v.writeCapacity(m, s)
	m.pair("waiting producers", count0(s.WaitingProducers))
	m.pair("refused", grouped(s.Refused))
	m.pair("storage", s.Storage)
	m.pair("open for", span(s.Age))
	m.raw("</dl>\n")
	v.writePartitions(m, s)
	for _, r := range rows {
		if r.topic == i {
			v.writeGroup(m, r)
		}
	}
	m.raw("</section>\n")
}

// writeCapacity writes how full the topic is.
func (v *debugView) writeCapacity(m markup, s *Stats) {
	gauge := func(name, value string, used, limit float64) {
		m.raw("<div>")
		m.element("dt", "", name)
		m.raw("<dd>")
		m.text(value)
		if limit > 0 {
			share := min(1, max(0, used/limit))
			m.raw(`<meter min="0" max="1" low="0.7" high="0.95" optimum="0" value="`, strconv.FormatFloat(share, 'f', 4, 64), `">`)
			m.text(strconv.FormatFloat(share*100, 'f', 0, 64) + " %")
			m.raw("</meter>")
		}
		m.raw("</dd></div>")
	}
	limit := "no limit"
	if s.Capacity > 0 {
		limit = "of " + grouped(uint64(s.Capacity)) + ", " + s.WhenFull.String() + " when full"
	}
	gauge("not committed by all", grouped(s.Retained)+" "+limit, float64(s.Retained), float64(s.Capacity))
	if s.CapacityBytes > 0 {
		gauge("bytes used", size(s.UsedBytes)+" of "+size(s.CapacityBytes), float64(s.UsedBytes), float64(s.CapacityBytes))
	}
	if s.Storage == "disk" {
		total := penstock.Bytes(0)
		for i := range s.Partitions {
			total += s.Partitions[i].Bytes
		}
		m.pair("log on disk", size(total))
	}
}

// size writes bytes for people.
func size(b penstock.Bytes) string {
	unit, name := penstock.Bytes(1), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if b < unit*1024 {
			break
		}
		unit, name = unit*1024, next
	}
	if unit == 1 {
		return strconv.FormatInt(int64(b), 10) + " B"
	}
	return strconv.FormatFloat(float64(b)/float64(unit), 'f', 1, 64) + " " + name
}

// writePartitions writes the partitions of a topic, folded when there are many.
func (v *debugView) writePartitions(m markup, s *Stats) {
	faults := 0
	for i := range s.Partitions {
		if s.Partitions[i].Fault != nil {
			faults++
		}
	}
	m.raw("<details")
	if faults > 0 {
		m.raw(` open=""`)
	}
	m.raw(">")
	title := count(uint64(len(s.Partitions)), "partition", "partitions")
	if faults > 0 {
		title += ", " + grouped(uint64(faults)) + " faulted"
	}
	m.element("summary", "", title)
	m.table("Partitions of topic "+s.Name, "#partition", "#earliest", "#end", "#not committed by all", "furthest behind", "fault")
	for i := range s.Partitions {
		if i == maxPartitionsOfPage {
			m.raw(`<tr><td colspan="6">`)
			m.text(grouped(uint64(len(s.Partitions)-i)) + " more partitions; the JSON has them.")
			m.raw("</td></tr>\n")
			break
		}
		p := &s.Partitions[i]
		m.raw("<tr>")
		m.numbers(strconv.Itoa(i), grouped(uint64(p.Earliest)), grouped(uint64(p.End)), grouped(p.Retained))
		m.element("td", "name", furthestBehind(s, i))
		fault := ""
		if p.Fault != nil {
			fault = errorText(p.Fault)
		}
		m.element("td", "why alarm", fault)
		m.raw("</tr>\n")
	}
	m.endTable()
	m.raw("</details>\n")
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
	return name + ", by " + grouped(lag)
}

// writeGroup writes what is known of a group, unfolded when somebody is needed.
func (v *debugView) writeGroup(m markup, r groupRow) {
	g := r.group
	severity := g.Severity()
	m.raw(`<details id="`, r.id, `"`)
	if severity >= Warning {
		m.raw(` open=""`)
	}
	m.raw("><summary><h3>")
	m.text(g.Name)
	m.raw(`</h3> <span class="state `, severity.String(), `">`)
	m.text(strings.ReplaceAll(g.State.String(), "_", " "))
	m.raw("</span> ")
	m.element("span", "", g.Why)
	m.raw("</summary>\n<dl>")
	run := &g.Run
	use := g.Use
	if run.Running {
		use += ", running"
	}
	m.pair("used by", use)
	m.pair("consumers", count0(g.Consumers))
	m.pair("lag", grouped(g.Lag)+", oldest "+lagText(g))
	m.pair("committed", grouped(g.Committed))
	m.pair("drains in", drainText(g))
	m.pair("delivered · failed", grouped(run.Delivered)+" · "+grouped(run.Failed))
	m.pair("in hand · retrying", count0(run.InHand)+" · "+count0(run.Waiting))
	m.pair("dead letters · dropped", grouped(run.DeadLettered)+" · "+grouped(run.Dropped))
	if g.Discarded+g.Redriven > 0 {
		m.pair("discarded · redriven", grouped(g.Discarded)+" · "+grouped(g.Redriven))
	}
	m.pair("batches by count · bytes · linger · retry", grouped(run.FlushedByCount)+" · "+grouped(run.FlushedByBytes)+" · "+
		grouped(run.FlushedByLinger)+" · "+grouped(run.Retries))
	if run.Batches > 0 {
		m.pair("time per call of the handler", span(run.HandlerTime/time.Duration(run.Batches)))
	}
	if g.Rate > 0 {
		m.pair("rate limit", rate(g.Rate))
	}
	if len(g.PausedPartitions) > 0 {
		m.pair("paused partitions", partitionList(g.PausedPartitions))
	}
	v.writeTrouble(m, g)
	m.raw("</dl>\n")
	v.writeWaits(m, g)
	v.writeWorst(m, g)
	m.raw("</details>\n")
}

// writeTrouble writes what is parked and what failed.
func (v *debugView) writeTrouble(m markup, g *GroupStats) {
	if p := &g.Parked; p.Keys > 0 || p.Events > 0 {
		text := count(uint64(p.Keys), "key", "keys") + ", " + count(uint64(p.Events), "event", "events") + ", " + size(p.Bytes)
		if !p.Oldest.IsZero() {
			text += ", the longest for " + span(max(0, v.now.Sub(p.Oldest)))
		}
		if p.Reason != "" {
			text += ": " + p.Reason
		}
		m.pair("parked", text)
	}
	if e := g.LastError; e != nil {
		where := ""
		if e.Partition >= 0 {
			where = fmt.Sprintf(", partition %d offset %d", e.Partition, e.Offset)
		}
		m.pair("last error", ago(v.now, e.Time)+", "+e.Kind+where+": "+e.Text)
	}
	if g.Run.EndedBy != "" {
		m.pair("Run ended", ago(v.now, g.Run.Ended)+": "+g.Run.EndedBy)
	}
}

// writeWaits writes the calls that run, and what is in the way of a partition.
func (v *debugView) writeWaits(m markup, g *GroupStats) {
	if len(g.Run.Calls) > 0 {
		m.table("Calls of the handler that run now", "#partition", "#offset", "#events", "#for")
		for _, c := range g.Run.Calls {
			m.raw("<tr>")
			m.numbers(strconv.Itoa(c.Partition), grouped(uint64(c.Offset)), count0(c.Events), span(max(0, v.now.Sub(c.Since))))
			m.raw("</tr>\n")
		}
		m.endTable()
	}
	if len(g.Run.Blocked) == 0 {
		return
	}
	m.table("Partitions that wait for an event in their way", "#partition", "#offset", "#attempts", "#due in", "why")
	for i, b := range g.Run.Blocked {
		if i == maxPartitionsOfPage {
			m.raw(`<tr><td colspan="5">`)
			m.text(grouped(uint64(len(g.Run.Blocked)-i)) + " more; the JSON has them.")
			m.raw("</td></tr>\n")
			break
		}
		due := "–"
		if wait := b.Due.Sub(v.now); !b.Due.IsZero() {
			due = span(max(0, wait))
		}
		m.raw("<tr>")
		m.numbers(strconv.Itoa(b.Partition), grouped(uint64(b.Offset)), count0(b.Attempts), due)
		m.element("td", "why", b.Reason)
		m.raw("</tr>\n")
	}
	m.endTable()
}

// writeWorst writes the partitions in which the group is behind the most.
func (v *debugView) writeWorst(m markup, g *GroupStats) {
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
	caption := "Partitions with a lag, " + grouped(uint64(len(worst))) + " of " + grouped(uint64(len(g.Partitions)))
	if len(worst) > worstPartitions {
		caption += "; the " + strconv.Itoa(worstPartitions) + " largest"
		worst = worst[:worstPartitions]
	}
	m.table(caption, "#partition", "#committed", "#end", "#lag", "#oldest")
	for _, i := range worst {
		p := &g.Partitions[i]
		oldest := "–"
		if p.LagTime > 0 {
			oldest = span(p.LagTime)
		}
		m.raw("<tr>")
		m.numbers(strconv.Itoa(i), grouped(uint64(p.Committed)), grouped(uint64(p.End)), grouped(p.Lag), oldest)
		m.raw("</tr>\n")
	}
	m.endTable()
}
