package main

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// task is one piece of work with a name.
type task struct {
	name string
	run  func() error
}

// beside runs tasks two at a time, in their order, and writes what became of
// each and how long it took. Most of them keep one core busy for much of their
// time.
func beside(w io.Writer, tasks []task) error {
	errs := make([]error, len(tasks))
	next := make(chan int, len(tasks))
	for i := range tasks {
		next <- i
	}
	close(next)
	var running sync.WaitGroup
	for range min(2, len(tasks)) {
		running.Go(func() { // ends with the tasks; waited for below
			for i := range next {
				start, word := time.Now(), "ok  "
				if errs[i] = tasks[i].run(); errs[i] != nil {
					word = "FAIL"
				}
				fmt.Fprintf(w, "%s %-20s %s\n", word, tasks[i].name, time.Since(start).Round(100*time.Millisecond))
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// shared is a writer for several goroutines.
type shared struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *shared) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(b)
}
