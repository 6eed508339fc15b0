// Package edge takes events over HTTP and puts them into topics.
//
//	POST /v1/topics/{topic}
//
// takes one JSON object (application/json) or one JSON object per line
// (application/x-ndjson). An answer 202 means that every event of the request
// has reached the durability level that the answer names. Any answer from 400
// to 431 means that nothing of the request was stored.
//
// The id and the key of an event come from two of its own top-level fields,
// named by the query parameters id and key, or, for a single object, from the
// headers Penstock-Id and Penstock-Key:
//
//	curl -d '{"order":"17","customer":"c4"}' -H 'Content-Type: application/json' \
//	     'http://127.0.0.1:8080/v1/topics/orders?id=order&key=customer'
//
// The bytes of an event are stored as they came, from the opening to the
// closing brace.
//
// # Answers
//
//	202  stored; {"accepted":N,"level":"synced"}
//	400  malformed; the message names the line, counted from 1
//	404  no such topic, or another path; paths are taken as they are, never cleaned
//	405  only POST
//	413  body, line or number of lines above its limit
//	415  another content type, or an encoded body
//	429  the topic or the edge is full; Retry-After says how many seconds to wait
//	431  headers above 16 KiB
//	500  the outcome is unknown: repeat the request with the same ids
//	503  stopping, with Retry-After
//	507  the disk is full; part of the request may be stored: repeat it with the same ids
//
// The body of every answer but 202 and 431 (which comes from net/http) says
// what was wrong; line is there when one line was:
//
//	{"error":{"code":"bad_event","message":"field \"id\" is missing","line":500}}
//
// # Limits
//
// Body, line and number of lines are checked before memory is taken for them.
// The bodies of all requests together are bounded too: a request reserves its
// length before the first byte is read.
//
// # Invariants
//
// A request is parsed whole before its first event is appended, and appended
// in one call, lines in order. The sum of reserved bytes never exceeds
// Config.MaxInFlight.
package edge
