package server

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestWhatPathsMean(t *testing.T) {
	for path, want := range map[string]route{
		"/pods":                          {kind: pods},
		"/pods/":                         {kind: pods},
		"/pods/x":                        {},
		"/podsx":                         {},
		"/Pods":                          {},
		"/healthz":                       {kind: healthz},
		"/healthz/syncloop":              {kind: healthz, check: "syncloop"},
		"/stats/summary":                 {kind: statsSummary},
		"/stats":                         {},
		"/metrics/resource":              {kind: metrics},
		"/containerLogs/ns/pod/c":        {kind: containerLogs, namespace: "ns", pod: "pod", container: "c"},
		"/containerLogs/ns/pod":          {},
		"/containerLogs/ns/pod/uid/c":    {},
		"/exec/ns/pod/c":                 {kind: exec, namespace: "ns", pod: "pod", container: "c"},
		"/exec/ns/pod/uid/c":             {kind: exec, namespace: "ns", pod: "pod", uid: "uid", container: "c"},
		"/exec/ns/pod":                   {},
		"/exec/ns/pod/uid/c/more":        {},
		"/attach/ns/pod.with.dots/uid/c": {kind: attach, namespace: "ns", pod: "pod.with.dots", uid: "uid", container: "c"},
		"/portForward/ns/pod":            {kind: portForward, namespace: "ns", pod: "pod"},
		"/portForward/ns/pod/uid":        {kind: portForward, namespace: "ns", pod: "pod", uid: "uid"},
		"/portForward/ns":                {},
		"/logs/any/thing":                {kind: nodeLogs},
		"/":                              {},
		"/run/ns/pod/c":                  {},
	} {
		want.path = path
		if got, err := parse(path, path); err != nil || got != want {
			t.Errorf("%s: %+v, %v; wanted %+v", path, got, err, want)
		}
	}
}

// tricks are ways to make a path mean something else than it seems to.
var tricks = []string{
	"/pods/../exec/default/web/app", "/pods/%2e%2e/exec/default/web/app", "/pods/..%2fexec/default/web/app", "/%2e%2e/%2e%2e/etc/passwd",
	"/containerLogs/default/web/..", "/containerLogs/default/../../etc/passwd", "/containerLogs/default/web/%2e%2e", "/containerLogs/default/web/..%2f..%2fetc%2fpasswd",
	"/containerLogs/default/web/%2fetc%2fpasswd", "/containerLogs/default/web//etc/passwd", "/containerLogs/default/web/app%00", "/containerLogs/default/web/app%00.log",
	"/containerLogs/default/web/%252e%252e", "/containerLogs/default/web/app%0d%0aX:y", "/containerLogs//web/app", "/containerLogs/default/web/.", "/containerLogs/./default/web/app",
	"//containerLogs/default/web/app", "/containerLogs/default/web/..\\..\\app", "/containerLogs/default/web/%5c..%5capp", "/containerLogs/default/web/app%20", "/containerLogs/default/web/ａpp",
	"/exec/default/web/%61pp?command=id&output=1", "/stats/%2e%2e/configz", "/metrics/../configz", "/healthz/..", "/logs/../pods", "/logs/%2e%2e/%2e%2e/etc/shadow", "/logs/..%2f..%2fetc/shadow",
}

func TestPathTricksAreRefused(t *testing.T) {
	w := newWorld(t)
	w.log(t, "c-app", "2026-11-20T14:00:01Z stdout F secret\n")
	for _, path := range tricks {
		r := &http.Request{Method: "GET", Header: http.Header{"Authorization": {"Bearer good"}}, Host: "node", RequestURI: path}
		u, err := url.ParseRequestURI(path)
		if err != nil {
			continue // net/http answers such a one with 400 by itself
		}
		r.URL = u
		out := w.answerTo(r)
		if out.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", path, out.Code, out.Body)
		}
	}
	for _, asked := range w.policy.questions() {
		if strings.HasPrefix(asked, "may") {
			t.Errorf("a trick got as far as to be asked about: %s", asked)
		}
	}
	if asked := w.runtime.questions(); len(asked) > 0 {
		t.Errorf("a trick reached the runtime: %v", asked)
	}
	for _, path := range tricks {
		if u, err := url.ParseRequestURI(path); err == nil {
			if out := w.answerTo(&http.Request{Method: "GET", Header: http.Header{}, URL: u}); out.Code != http.StatusUnauthorized {
				t.Errorf("%s, by nobody: %d", path, out.Code)
			}
		}
	}
}

func TestLongPathsAreRefused(t *testing.T) {
	w := newWorld(t)
	if out := w.direct("GET", "/containerLogs/default/web/"+strings.Repeat("a", maxPath), "good"); out.Code != http.StatusRequestURITooLong {
		t.Errorf("%d", out.Code)
	}
}

// upstreams is kubelet's rule for which subresource stands for a path, by prefixes of the text.
func upstreams(path string) (found []string) {
	below := func(prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }
	switch {
	case below("/pods"), below("/runningpods"):
		found = append(found, "pods")
	case below("/healthz"):
		found = append(found, "healthz")
	case below("/configz"):
		found = append(found, "configz")
	}
	switch {
	case below("/stats"):
		return append(found, "stats")
	case below("/metrics"):
		return append(found, "metrics")
	case below("/logs"):
		return append(found, "log")
	case below("/checkpoint"):
		return append(found, "checkpoint")
	case below("/statusz"):
		return append(found, "statusz")
	case below("/flagz"):
		return append(found, "configz")
	}
	return append(found, "proxy")
}

func FuzzPath(f *testing.F) {
	for _, path := range append(tricks, "/pods", "/exec/ns/pod/uid/c", "/containerLogs/ns/pod/c", "/", "", "*", "/metrics/", "/healthz/ping") {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		u, err := url.ParseRequestURI(uri)
		if err != nil {
			return
		}
		r, err := parse(u.Path, u.EscapedPath())
		if err != nil {
			return
		}
		for _, part := range strings.Split(strings.Trim(u.Path, "/"), "/") {
			if part == ".." || part == "." || strings.ContainsAny(part, "\x00\\% ") {
				t.Errorf("%q: let through", uri)
			}
		}
		for _, name := range []string{r.namespace, r.pod, r.uid, r.container, r.check} {
			if strings.Contains(name, "/") || name == ".." {
				t.Errorf("%q: name %q", uri, name)
			}
		}
		if want := upstreams(u.Path); !slices.Equal(r.subresources(), want) {
			t.Errorf("%q: asked about %v, upstream about %v", uri, r.subresources(), want)
		}
		if r.streams() && (r.pod == "" || r.namespace == "" || (r.kind != portForward && r.container == "")) {
			t.Errorf("%q: a stream to nowhere: %+v", uri, r)
		}
	})
}

// Of two pods with a name, one of which is on its way out, the first is meant, or the one whose UID
// is given.
func TestPodsOfOneName(t *testing.T) {
	named := func(uid types.UID) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: uid}}
	}
	s := &Server{options: Options{Pods: func() []*v1.Pod { return []*v1.Pod{named("new"), named("old")} }}}
	for uid, want := range map[string]types.UID{"": "new", "new": "new", "old": "old"} {
		if got, err := s.pod(route{namespace: "default", pod: "web", uid: uid}); err != nil || got.UID != want {
			t.Errorf("%q: %v, %v", uid, got, err)
		}
	}
	if _, err := s.pod(route{namespace: "default", pod: "web", uid: "other"}); err == nil || err.Error() != `pod "web" has another UID than other` {
		t.Errorf("other: %v", err)
	}
}
