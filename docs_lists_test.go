package penstock_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// row is one line of a table in a document.
type row struct {
	line  int
	cells []string
}

// rows returns the rows of a document's tables whose first cell matches.
func rows(t *testing.T, file string, first *regexp.Regexp) (all []row) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		inner, ok := strings.CutPrefix(strings.TrimSpace(line), "|")
		if !ok {
			continue
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.TrimSuffix(inner, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		if first.MatchString(cells[0]) {
			all = append(all, row{line: n, cells: cells})
		}
	}
	return all
}

var (
	number   = regexp.MustCompile(`^[0-9]+$`)
	report   = regexp.MustCompile(`^[\w.-]+/[\w.-]+#[0-9]+$`)
	inQuotes = regexp.MustCompile("`(?:Test|Fuzz)[A-Z][A-Za-z0-9_]*`")
)

// numbered checks that the rows are numbered from 1 to last, in order and
// without a gap.
func numbered(t *testing.T, file string, all []row, last int) {
	t.Helper()
	if len(all) != last {
		t.Errorf("%s: %d rows, want %d", file, len(all), last)
	}
	want := 1
	for _, r := range all {
		if got := atoi(r.cells[0]); got != want {
			t.Errorf("%s:%d: row %s where %d belongs", file, r.line, r.cells[0], want)
			want = got
		}
		want++
	}
}

func atoi(s string) (n int) {
	for _, c := range s {
		n = 10*n + int(c-'0')
	}
	return n
}

// TestParityListIsWhole: every requirement of the queue has a state, and a test
// unless there is no counterpart.
func TestParityListIsWhole(t *testing.T) {
	const file = "docs/parity.md"
	all := rows(t, file, number)
	numbered(t, file, all, 131)
	testedLines(t, file, "QC-", 1, 2, 4, 5, 7, 9, 11, 13, 15, 17, 19, 21, 22, 23, 26, 29, 31, 32, 34, 36, 37, 39, 40, 43, 45, 47, 49,
		51, 52, 53, 54, 56, 59, 61, 63, 66, 68, 70, 72, 74)
	testedLines(t, file, "PC-", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18)
	testedLines(t, file, "P", 1, 2, 3, 4, 5, 6, 7, 8, 9)
	testedLines(t, file, "FM-", 55, 56, 57, 58, 59, 62, 63, 64, 65, 71, 73, 92, 93, 101, 102, 104)
	for _, r := range all {
		if len(r.cells) != 5 {
			t.Errorf("%s:%d: %d cells, want 5", file, r.line, len(r.cells))
			continue
		}
		state, tests, note := r.cells[2], r.cells[3], r.cells[4]
		if !slices.Contains([]string{"same", "better", "different", "n.a.", "open"}, state) {
			t.Errorf("%s:%d: state %q", file, r.line, state)
		}
		if r.cells[1] == "" || state != "n.a." && !inQuotes.MatchString(tests) {
			t.Errorf("%s:%d: no words or no test", file, r.line)
		}
		if state != "same" && state != "better" && note == "" {
			t.Errorf("%s:%d: %s, and no reason", file, r.line, state)
		}
	}
}

// testedLines checks that the document has exactly these rows with the prefix,
// in this order, each with a test in its last cell. The test of a case has the
// number of the case.
func testedLines(t *testing.T, file, prefix string, numbers ...int) {
	t.Helper()
	all := rows(t, file, regexp.MustCompile(`^`+prefix+`[0-9]+$`))
	var got []int
	for _, r := range all {
		n := atoi(strings.TrimPrefix(r.cells[0], prefix))
		got = append(got, n)
		tests := r.cells[len(r.cells)-1]
		if !inQuotes.MatchString(tests) {
			t.Errorf("%s:%d: no test", file, r.line)
		}
		ending := "_" + strings.Replace(r.cells[0], "-", "", 1) + "`"
		if strings.HasSuffix(prefix, "C-") && strings.Count(tests, ending) != strings.Count(tests, "`")/2 {
			t.Errorf("%s:%d: the name of a test does not end with the case", file, r.line)
		}
	}
	if !slices.Equal(got, numbers) {
		t.Errorf("%s: %s%v, want %v", file, prefix, got, numbers)
	}
}

// TestEveryTestOfACaseHasItsRow: a test whose name ends with the number of a case
// stands in the row of the case.
func TestEveryTestOfACaseHasItsRow(t *testing.T) {
	const file = "docs/parity.md"
	in := map[string]string{} // the tests of a case
	for _, r := range rows(t, file, regexp.MustCompile(`^(?:QC|PC|STC)-[0-9]+$`)) {
		in[strings.Replace(r.cells[0], "-", "", 1)] = r.cells[len(r.cells)-1]
	}
	of := regexp.MustCompile(`(?m)^func (Test\w+_((?:QC|PC|STC)[0-9]+))\(`)
	found := 0
	for _, dir := range []string{".", "demand", "queue", "segfile", "stage"} {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range of.FindAllStringSubmatch(string(text), -1) {
				if found++; !strings.Contains(in[m[2]], "`"+m[1]+"`") {
					t.Errorf("%s: %s is not in the row of %s in %s", name, m[1], m[2], file)
				}
			}
		}
	}
	if found < 150 {
		t.Errorf("only %d tests of cases", found)
	}
}

// TestBufferQueueStatementsAreAnswered: every statement of the design page has
// a name here, a test, and a word about differences.
func TestBufferQueueStatementsAreAnswered(t *testing.T) {
	const file = "docs/from-bufferqueue.md"
	all := rows(t, file, number)
	numbered(t, file, all, 64)
	for _, r := range all {
		if len(r.cells) != 5 {
			t.Errorf("%s:%d: %d cells, want 5", file, r.line, len(r.cells))
			continue
		}
		if slices.Contains(r.cells, "") || !inQuotes.MatchString(r.cells[3]) {
			t.Errorf("%s:%d: an empty cell, or no test", file, r.line)
		}
	}
}

// answered: the file has n statements, each with words, a test and a difference.
func answered(t *testing.T, file string, n int) {
	t.Helper()
	all := rows(t, file, number)
	numbered(t, file, all, n)
	for _, r := range all {
		if len(r.cells) != 5 {
			t.Errorf("%s:%d: %d cells, want 5", file, r.line, len(r.cells))
			continue
		}
		if r.cells[1] == "" || r.cells[4] == "" || !inQuotes.MatchString(r.cells[3]) {
			t.Errorf("%s:%d: an empty cell, or no test", file, r.line)
		}
	}
}

// TestGenStageStatementsAreAnswered: every statement of the second design page
// has a test and a word about differences.
func TestGenStageStatementsAreAnswered(t *testing.T) {
	answered(t, "docs/from-genstage-and-sluice.md", 26)
}

// TestStageListIsWhole: every requirement of the stages has a state; a test
// unless it is open; a reason when it is open or different. The test of a case
// has the number of the case.
func TestStageListIsWhole(t *testing.T) {
	const file = "docs/parity.md"
	want := 1
	for _, r := range rows(t, file, regexp.MustCompile(`^ST-[0-9]+$`)) {
		if want == 131 { // acknowledged pipelines, which come later
			want = 149
		}
		if n := atoi(strings.TrimPrefix(r.cells[0], "ST-")); n != want {
			t.Errorf("%s:%d: %s where %d belongs", file, r.line, r.cells[0], want)
			want = n
		}
		want++
		if len(r.cells) != 5 {
			t.Errorf("%s:%d: %d cells, want 5", file, r.line, len(r.cells))
			continue
		}
		state, note := r.cells[2], r.cells[4]
		if !slices.Contains([]string{"same", "better", "different", "open"}, state) {
			t.Errorf("%s:%d: state %q", file, r.line, state)
		}
		if r.cells[1] == "" || state != "open" && !inQuotes.MatchString(r.cells[3]) || (state == "open" || state == "different") && note == "" {
			t.Errorf("%s:%d: no words, no test, or no reason", file, r.line)
		}
	}
	if want != 157 {
		t.Errorf("%s: the requirements of stages end before ST-%d", file, want)
	}
	testedLines(t, file, "STC-", 1, 2, 5, 7, 9, 11, 13, 15, 16, 17, 19, 20, 22, 24, 26, 27, 29, 31, 33, 34, 35, 36, 38, 40, 44, 45, 46, 47, 50,
		52, 53, 56, 57, 58, 60, 63, 64, 65, 68, 70, 72, 73, 75, 77, 80, 81, 83, 84, 87, 91, 92, 93, 98, 99, 100, 103, 105, 106, 107, 108,
		112, 113, 114, 115, 116, 118, 119, 120, 123, 124, 126, 127, 131, 132, 157, 160, 161, 166)
	testedLines(t, file, "P-", 1, 2, 3, 4, 5, 19)
	for _, r := range rows(t, file, regexp.MustCompile(`^STC-[0-9]+$`)) {
		ending := "_" + strings.Replace(r.cells[0], "-", "", 1) + "` (stage)"
		if tests := r.cells[len(r.cells)-1]; strings.Count(tests, ending) == 0 || strings.Count(tests, ending) != strings.Count(tests, "`")/2 {
			t.Errorf("%s:%d: a test is not of the case", file, r.line)
		}
	}
}

// TestOrleansStatementsAreAnswered: every statement of the third design page has
// a test and a word about differences.
func TestOrleansStatementsAreAnswered(t *testing.T) {
	answered(t, "docs/from-orleans.md", 36)
}

// TestStreamListIsWhole: every requirement of the streams has a state; a test
// unless it is open or has no counterpart, and otherwise a reason.
func TestStreamListIsWhole(t *testing.T) {
	const file = "docs/parity.md"
	want := 1
	for _, r := range rows(t, file, regexp.MustCompile(`^OR-[0-9]+$`)) {
		if n := atoi(strings.TrimPrefix(r.cells[0], "OR-")); n != want {
			t.Errorf("%s:%d: %s where %d belongs", file, r.line, r.cells[0], want)
			want = n
		}
		want++
		if len(r.cells) != 5 {
			t.Errorf("%s:%d: %d cells, want 5", file, r.line, len(r.cells))
			continue
		}
		state, note := r.cells[2], r.cells[4]
		if !slices.Contains([]string{"same", "better", "different", "n.a.", "open"}, state) {
			t.Errorf("%s:%d: state %q", file, r.line, state)
		}
		without := state == "open" || state == "n.a."
		if r.cells[1] == "" || !without && !inQuotes.MatchString(r.cells[3]) || (without || state == "different") && note == "" {
			t.Errorf("%s:%d: no words, no test, or no reason", file, r.line)
		}
	}
	if want != 166 {
		t.Errorf("%s: the requirements of streams end before OR-%d", file, want)
	}
}

// TestPublicBugsAreTested: every row names at least one report, by repository
// and number, and at least one test.
func TestPublicBugsAreTested(t *testing.T) {
	const file = "docs/public-bugs.md"
	all := rows(t, file, regexp.MustCompile(`#[0-9]`))
	if len(all) < 30 {
		t.Errorf("%s: only %d rows", file, len(all))
	}
	seen := map[string]int{}
	for _, r := range all {
		for id := range strings.SplitSeq(r.cells[0], ", ") {
			if !report.MatchString(id) {
				t.Errorf("%s:%d: %q is no owner/repo#number", file, r.line, id)
			}
			if before := seen[id]; before > 0 {
				t.Errorf("%s:%d: %s stands in line %d too", file, r.line, id, before)
			}
			seen[id] = r.line
		}
		if len(r.cells) != 3 || r.cells[1] == "" || !inQuotes.MatchString(r.cells[2]) {
			t.Errorf("%s:%d: no words or no test", file, r.line)
		}
	}
}

var (
	testFunc  = regexp.MustCompile(`(?ms)^func ((?:Test|Fuzz)\w+)\([^\n]*\{\n.*?^}`)
	saidWhere = regexp.MustCompile("`((?:Test|Fuzz)\\w+)`(?: \\(([\\w/]+)\\))?")
	// onBoth are the ways in which a test of queue runs in memory and on disk.
	onBoth = regexp.MustCompile(`forEachStorage\(|inBubble\(|bubble\(|range storages|"memory", "file"`)
)

// TestDocumentsSayWhereTestsRun: a test stands in the package behind its name,
// and one of queue that runs in memory or on disk alone says so.
func TestDocumentsSayWhereTestsRun(t *testing.T) {
	tests := map[string]map[string]string{} // package to name to source
	goFiles(t, func(path string, source []byte) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		if tests[dir] == nil {
			tests[dir] = map[string]string{}
		}
		for _, m := range testFunc.FindAllSubmatch(source, -1) {
			tests[dir][string(m[1])] = string(m[0])
		}
	})
	for file, least := range map[string]int{"docs/parity.md": 300, "docs/from-bufferqueue.md": 80, "docs/from-genstage-and-sluice.md": 35, "docs/from-orleans.md": 40} {
		n := 0
		for _, r := range rows(t, file, regexp.MustCompile(`[0-9]$`)) {
			for _, m := range saidWhere.FindAllStringSubmatch(strings.Join(r.cells, " "), -1) {
				n++
				name, where := m[1], m[2]
				switch dir := strings.Replace(where, "root", ".", 1); where {
				case "", "memory", "disk":
					source, ok := tests["queue"][name]
					if both := onBoth.MatchString(source); !ok || both != (where == "") {
						t.Errorf("%s:%d: %s (%s): in queue %t, in memory and on disk %t", file, r.line, name, where, ok, both)
					}
				default:
					if _, ok := tests[dir][name]; !ok {
						t.Errorf("%s:%d: %s is not in %s", file, r.line, name, dir)
					}
				}
			}
		}
		if n < least {
			t.Errorf("%s: only %d tests found", file, n)
		}
	}
}
