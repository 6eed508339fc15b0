package edge

import (
	"bytes"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/penstock/penstock"
)

// Content types that the edge takes.
const (
	TypeJSON   = "application/json"
	TypeNDJSON = "application/x-ndjson"
)

var newline = []byte("\n")

// want is what the head of a request says about its body.
type want struct {
	lines             bool   // NDJSON
	idField, keyField string // "" = none
	id, key           string // of a single object, from the headers
}

// wantOf reads the head of a request. It is strict: what it does not know it
// refuses, so that a typing error never loses an id or a key.
func wantOf(r *http.Request) (want, error) {
	var w want
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset, other := params["charset"], len(params)
	if charset != "" {
		other--
	}
	if err != nil || kind != TypeJSON && kind != TypeNDJSON || other > 0 || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return w, refuse(http.StatusUnsupportedMediaType, "content_type", "the content type is not "+TypeJSON+" or "+TypeNDJSON)
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return w, refuse(http.StatusUnsupportedMediaType, "content_encoding", "encoded bodies are not taken; send it plain")
	}
	w.lines = kind == TypeNDJSON
	query, err := parseQuery(r.URL.RawQuery)
	if err != nil {
		return w, err
	}
	w.idField, w.keyField = query["id"], query["key"]
	w.id, w.key = r.Header.Get("Penstock-Id"), r.Header.Get("Penstock-Key")
	switch {
	case w.lines && (w.id != "" || w.key != ""):
		return w, refuse(http.StatusBadRequest, "header", "Penstock-Id and Penstock-Key are for a single object; with NDJSON name the fields: ?id=FIELD&key=FIELD")
	case w.id != "" && w.idField != "" || w.key != "" && w.keyField != "":
		return w, refuse(http.StatusBadRequest, "header", "an id or a key is given twice: by a header and by a query parameter")
	}
	for _, s := range []string{w.id, w.key} {
		if len(s) > maxText || !utf8.ValidString(s) {
			return w, refuse(http.StatusBadRequest, "header", fmt.Sprintf("an id or a key is longer than %d bytes or not UTF-8", maxText))
		}
	}
	return w, nil
}

func parseQuery(raw string) (map[string]string, error) {
	bad := func(why string) error { return refuse(http.StatusBadRequest, "parameter", why) }
	query := map[string]string{}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, bad("the query cannot be read: " + err.Error())
	}
	for name, vs := range values {
		if name != "id" && name != "key" {
			return nil, bad(fmt.Sprintf("unknown query parameter %.40q; there are id and key", name))
		}
		if len(vs) != 1 || vs[0] == "" || len(vs[0]) > maxText {
			return nil, bad(fmt.Sprintf("query parameter %s names one field", name))
		}
		query[name] = vs[0]
	}
	return query, nil
}

// parse turns the body into events, all of them or none. Values are parts of
// the body.
func (w want) parse(body []byte, c *Config) ([]penstock.Event[[]byte], error) {
	if !w.lines {
		e, err := w.event(bytes.TrimSpace(body), 0, c)
		if err != nil {
			return nil, err
		}
		return []penstock.Event[[]byte]{e}, nil
	}
	events := make([]penstock.Event[[]byte], 0, min(bytes.Count(body, newline)+1, c.MaxEvents))
	number := 0
	for line := range bytes.Lines(body) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		if len(events) == c.MaxEvents {
			return nil, refuseLine(http.StatusRequestEntityTooLarge, number, fmt.Sprintf("there are more than %d events in one request", c.MaxEvents))
		}
		e, err := w.event(line, number, c)
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	if len(events) == 0 {
		return nil, refuse(http.StatusBadRequest, "empty_body", "the body holds no event")
	}
	return events, nil
}

// event checks one object and takes its id and key. number is its line, 0 for
// a single object.
func (w want) event(object []byte, number int, c *Config) (e penstock.Event[[]byte], err error) {
	if penstock.Bytes(len(object)) > c.MaxLine {
		return e, refuseLine(http.StatusRequestEntityTooLarge, number, fmt.Sprintf("the event is longer than %v", c.MaxLine))
	}
	found, err := scanObject(object, [2]string{w.idField, w.keyField})
	if err != nil {
		return e, refuseLine(http.StatusBadRequest, number, err.Error())
	}
	e.Value = object
	e.ID, e.Key = w.id, w.key
	if w.idField != "" {
		if e.ID, err = textOf(found[0], w.idField); err != nil {
			return e, refuseLine(http.StatusBadRequest, number, err.Error())
		}
	}
	if w.keyField != "" {
		if e.Key, err = textOf(found[1], w.keyField); err != nil {
			return e, refuseLine(http.StatusBadRequest, number, err.Error())
		}
	}
	return e, nil
}
