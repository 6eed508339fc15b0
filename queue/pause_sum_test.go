package queue

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

// What holds a group back is changed and summed up in one step: whoever changes
// a pause waits for who does at the moment. Otherwise a sum that was made before
// another pause, and is stored after it, says that nothing is held back.
func TestChangesOfPausesComeOneAtATime(t *testing.T) {
	for name, change := range map[string]func(*control){
		"pausePartition": func(c *control) { c.pausePartition(0, true) },
		"pause":          func(c *control) { c.pause(true) },
	} {
		t.Run(name, func(t *testing.T) {
			var c control
			c.init(1, &GroupConfig{})
			c.mu.Lock()
			done := make(chan struct{})
			go func() { // ends when the lock is given back; received below
				defer close(done)
				change(&c)
			}()
			if !waitsForLock(t, name, done) {
				t.Error("the change did not wait for the one under way")
			}
			c.mu.Unlock()
			<-done
			if !c.busy.Load() {
				t.Error("nothing is held back after a pause")
			}
		})
	}
}

// waitsForLock reports whether the goroutine in a method of control waits for a
// mutex, or returns false when it is done.
func waitsForLock(t *testing.T, method string, done chan struct{}) bool {
	t.Helper()
	stacks := make([]byte, 1<<20)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); runtime.Gosched() {
		select {
		case <-done:
			return false
		default:
		}
		for _, g := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(g, "queue.(*control)."+method+"(") && strings.Contains(g, "[sync.Mutex.Lock") {
				return true
			}
		}
	}
	t.Fatal("after a minute the change neither waits nor is done")
	return false
}
