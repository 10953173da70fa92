package guard

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// Who sends no body that was announced, or takes no answer, does not hold the handler for ever.
func TestRequestsHaveDeadlines(t *testing.T) {
	var read, written time.Time
	handler := inTime(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, c := range []struct {
		path, body string
		wantsRead  bool
		take       time.Duration
	}{
		{"/metrics", "", false, takeTime},
		{"/debug/flags/v", "4", true, takeTime},
		{"/debug/pprof/profile?seconds=300", "", false, profileTime},
	} {
		read, written = time.Time{}, time.Time{}
		r, err := http.NewRequest(http.MethodGet, c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		before := time.Now()
		handler.ServeHTTP(&deadlines{read: &read, written: &written}, r)
		if read.IsZero() == c.wantsRead || written.Sub(before) < c.take || written.Sub(before) > c.take+time.Minute {
			t.Errorf("%s: read by %v, written by %v", c.path, read, written)
		}
	}
}

type deadlines struct {
	http.ResponseWriter
	read, written *time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error  { *d.read = t; return nil }
func (d *deadlines) SetWriteDeadline(t time.Time) error { *d.written = t; return nil }
