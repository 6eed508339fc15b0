package edge

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/penstock/penstock"
)

// accepted is the body of an answer 202.
type accepted struct {
	Accepted int    `json:"accepted"`
	Level    string `json:"level"`
}

// problem is an answer that is not 202. It is an error, so that it can travel
// up from where it was found.
type problem struct {
	status     int
	retryAfter string // seconds; "" = none
	Code       string `json:"code"`
	Message    string `json:"message"`
	Line       int    `json:"line,omitempty"` // from 1; 0 = the whole request
}

func (p *problem) Error() string { return p.Code + ": " + p.Message }

func (p *problem) write(w http.ResponseWriter) {
	if p.retryAfter != "" {
		w.Header().Set("Retry-After", p.retryAfter)
	}
	switch p.status {
	case http.StatusUnsupportedMediaType:
		w.Header().Set("Accept-Post", TypeJSON+", "+TypeNDJSON)
	case http.StatusMethodNotAllowed:
		w.Header().Set("Allow", http.MethodPost)
	}
	writeJSON(w, p.status, map[string]*problem{"error": p})
}

func refuse(status int, code, message string) error {
	return &problem{status: status, Code: code, Message: message}
}

func refuseLine(status, line int, message string) error {
	code := "bad_event"
	if status == http.StatusRequestEntityTooLarge {
		code = "too_large"
	}
	return &problem{status: status, Code: code, Message: message, Line: line}
}

var errBusy = &problem{status: http.StatusTooManyRequests, retryAfter: "1", Code: "busy",
	Message: "the bodies of the requests under way take all the memory set aside for them"}

// problemOf returns the answer for an error of a topic or of the edge itself.
func problemOf(err error) *problem {
	var p *problem
	var partial *penstock.PartialError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &partial), errors.Is(err, penstock.ErrUnknownOutcome):
		return &problem{status: http.StatusInternalServerError, Code: "unknown_outcome",
			Message: "part of the request may be stored; repeat it with the same ids"}
	case errors.Is(err, penstock.ErrFull):
		return &problem{status: http.StatusTooManyRequests, retryAfter: "1", Code: "full",
			Message: "the topic is full; nothing of the request was stored"}
	case errors.Is(err, penstock.ErrTooLarge):
		return &problem{status: http.StatusRequestEntityTooLarge, Code: "too_large", Message: err.Error()}
	case errors.Is(err, penstock.ErrClosed), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &problem{status: http.StatusServiceUnavailable, retryAfter: "1", Code: "stopping",
			Message: "the node is stopping; repeat the request with the same ids"}
	case errors.Is(err, penstock.ErrDiskFull):
		return &problem{status: http.StatusInsufficientStorage, retryAfter: "10", Code: "disk_full",
			Message: "the disk is full; repeat the request with the same ids when there is room"}
	case errors.Is(err, penstock.ErrCorrupt):
		return &problem{status: http.StatusInternalServerError, Code: "damaged",
			Message: "stored data of the topic is damaged; part of the request may be stored"}
	}
	return &problem{status: http.StatusInternalServerError, Code: "failed",
		Message: "the request failed and part of it may be stored; the node's log says why"}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil { // our own types: cannot happen, and must not look like success
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", TypeJSON)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // a client that is gone needs no answer
}
