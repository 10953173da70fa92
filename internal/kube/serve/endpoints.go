// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	flagzv1alpha1 "k8s.io/apiserver/pkg/server/flagz/api/v1alpha1"
	flagzv1beta1 "k8s.io/apiserver/pkg/server/flagz/api/v1beta1"
	statuszv1alpha1 "k8s.io/apiserver/pkg/server/statusz/api/v1alpha1"
	statuszv1beta1 "k8s.io/apiserver/pkg/server/statusz/api/v1beta1"
	"k8s.io/component-base/logs"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // rest_client_*
	"k8s.io/component-base/metrics/prometheus/slis"
	_ "k8s.io/component-base/metrics/prometheus/version" // kubernetes_build_info
	"k8s.io/component-base/version"
)

// Check is one health check.
type Check struct {
	Name string
	// Failed returns an error if the check fails. Any caller that reaches the port can read the
	// error.
	Failed func(*http.Request) error
}

// Endpoints holds the content of a component's endpoints. Checks, Config and Metrics are evaluated
// on each request.
type Endpoints struct {
	Component   string  // name in statusz and flagz
	Live, Ready []Check // Live is for /healthz and /livez, Ready for /readyz
	// Metrics holds the component's own metrics. The metrics of the process and of Kubernetes'
	// libraries are always served.
	Metrics prometheus.Gatherer
	// Config returns the content of /configz, with upstream's keys; nil disables /configz.
	Config func() map[string]any
	Flags  *pflag.FlagSet // content of /flagz; nil disables /flagz
	// Profiling adds /debug/pprof/ and /debug/flags/v.
	Profiling bool
}

// Handler serves all paths. It does not authenticate callers; the listener does (see gate).
func (e *Endpoints) Handler() http.Handler {
	mux := &listing{ServeMux: http.NewServeMux()}
	mux.addHealth("/healthz", e.Live)
	mux.addHealth("/livez", e.Live)
	mux.addHealth("/readyz", e.Ready)
	// Kubernetes' libraries share a registry. The component's own metrics are not in it, because
	// they would conflict with those of an upstream component in the same process, as in tests.
	gatherers := prometheus.Gatherers{legacyregistry.DefaultGatherer}
	if e.Metrics != nil {
		gatherers = append(gatherers, e.Metrics)
	}
	mux.Handle("/metrics", metrics.HandlerFor(gatherers, metrics.HandlerOpts{ErrorHandling: metrics.ContinueOnError}))
	slis.SLIMetricsWithReset{}.Install(mux)
	if e.Config != nil {
		mux.Handle("/configz", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { WriteJSON(w, e.Config()) }))
	}

	if e.Flags != nil {
		mux.Handle("/flagz", e.newFlagz())
	}
	if e.Profiling {
		mux.Handle("/debug/pprof/", http.HandlerFunc(pprof.Index))
		mux.Handle("/debug/pprof/cmdline", http.HandlerFunc(pprof.Cmdline))
		mux.Handle("/debug/pprof/profile", http.HandlerFunc(pprof.Profile))
		mux.Handle("/debug/pprof/symbol", http.HandlerFunc(pprof.Symbol))
		mux.Handle("/debug/pprof/trace", http.HandlerFunc(pprof.Trace))
		mux.Handle("/debug/flags/v", http.HandlerFunc(setVerbosity))
	}

	// Like upstream, the list in /statusz does not contain /statusz.
	paths := slices.Clone(mux.paths)
	mux.Handle("/statusz", e.newStatusz(paths))
	mux.ServeMux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		WriteJSON(w, map[string]any{"paths": mux.paths})
	})
	return readOnly(mux)
}

// readOnly rejects methods other than GET and HEAD, except for setting the verbosity and looking up
// symbols. Like upstream, it sets two headers that forbid caching and content sniffing.
func readOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		put := r.Method == http.MethodPut && r.URL.Path == "/debug/flags/v"
		if r.Method != http.MethodGet && r.Method != http.MethodHead && !put && !strings.HasPrefix(r.URL.Path, "/debug/pprof/symbol") {
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Cache-Control", "no-cache, private")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}

// listing is a mux that lists its paths.
type listing struct {
	*http.ServeMux
	paths []string
}

// Handle registers a path and keeps the list sorted.
func (m *listing) Handle(path string, handler http.Handler) {
	m.ServeMux.Handle(path, handler)
	i, _ := slices.BinarySearch(m.paths, path)
	m.paths = slices.Insert(m.paths, i, path)
}

// addHealth serves all checks together at path, and each check at a path below it. It adds the
// check ping, which always succeeds, like in upstream.
func (m *listing) addHealth(path string, checks []Check) {
	checks = append([]Check{{Name: "ping", Failed: func(*http.Request) error { return nil }}}, checks...)
	m.Handle(path, checksHandler(strings.TrimPrefix(path, "/"), checks))
	for _, c := range checks {
		m.Handle(path+"/"+c.Name, checksHandler(strings.TrimPrefix(path, "/"), []Check{c}))
	}
}

// checksHandler responds like Kubernetes' components, and supports ?verbose and ?exclude=CHECK.
// Unlike upstream, which only logs the reasons of failures, it includes them in the response.
//
// For example, the response to a failed probe is:
//
//	[+]ping ok
//	[-]watches failed: taint eviction has not seen all pods, nodes and devices yet
//	readyz check failed
func checksHandler(kind string, checks []Check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var lines strings.Builder
		failed := false
		for _, c := range checks {
			if slices.Contains(r.URL.Query()["exclude"], c.Name) {
				fmt.Fprintf(&lines, "[+]%s excluded: ok\n", c.Name)
				continue
			}
			if err := c.Failed(r); err != nil {
				failed = true
				_ = slis.ObserveHealthcheck(context.Background(), c.Name, kind, slis.Error)
				fmt.Fprintf(&lines, "[-]%s failed: %v\n", c.Name, err)
				continue
			}
			_ = slis.ObserveHealthcheck(context.Background(), c.Name, kind, slis.Success)
			fmt.Fprintf(&lines, "[+]%s ok\n", c.Name)
		}

		switch _, verbose := r.URL.Query()["verbose"]; {
		case failed:
			http.Error(w, lines.String()+kind+" check failed", http.StatusInternalServerError)
		case verbose:
			fmt.Fprintf(w, "%s%s check passed\n", lines.String(), kind)
		default:
			fmt.Fprint(w, "ok")
		}
	})
}

// WriteJSON responds with a value, or with the error if it cannot be encoded as JSON.
func WriteJSON(w http.ResponseWriter, value any) {
	encoded, err := json.Marshal(value)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(encoded, '\n'))
}

// setVerbosity sets klog's -v of the running process, for example by curl -X PUT -d 4.
func setVerbosity(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		http.Error(w, "want PUT with the verbosity as body", http.StatusMethodNotAllowed)
		return
	}
	body := make([]byte, 16)
	n, _ := r.Body.Read(body)
	answer, err := logs.GlogSetter(strings.TrimSpace(string(body[:n])))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fmt.Fprintln(w, cmp.Or(answer, "ok"))
}

// header begins each page in text form. Its form and its warning are the same as in upstream.
const header = `
%s %s
Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.
`

// zpage is a text page, which is also available as an API object for programs that request it by
// kind and version. The kinds are the same as in upstream, but upstream's handlers are not used,
// because they depend on the API server's tracing and auditing. Both forms are generated on each
// request.
type zpage struct {
	kind    string
	text    func(io.Writer)
	objects map[string]func() runtime.Object // by version
}

// newFlagz returns the page with the values of all flags, whether given or default. Hidden flags
// are included only if they were given.
func (e *Endpoints) newFlagz() *zpage {
	values := func() map[string]string {
		values := map[string]string{}
		e.Flags.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden || f.Changed {
				values[f.Name] = shownValue(f)
			}
		})
		return values
	}

	meta := metav1.ObjectMeta{Name: e.Component}
	return &zpage{
		kind: "Flagz",
		text: func(w io.Writer) {
			fmt.Fprintf(w, header, e.Component, "flagz")
			e.Flags.VisitAll(func(f *pflag.Flag) {
				if !f.Hidden || f.Changed {
					fmt.Fprintf(w, "%s=%s\n", f.Name, shownValue(f))
				}
			})
		},
		objects: map[string]func() runtime.Object{
			"v1alpha1": func() runtime.Object {
				return &flagzv1alpha1.Flagz{TypeMeta: typeMeta("Flagz", "v1alpha1"), ObjectMeta: meta, Flags: values()}
			},
			"v1beta1": func() runtime.Object {
				return &flagzv1beta1.Flagz{TypeMeta: typeMeta("Flagz", "v1beta1"), ObjectMeta: meta, Flags: values()}
			},
		},
	}
}

// shownValue returns a flag's value, or "CLASSIFIED" if the flag is marked as a secret, as in
// upstream.
func shownValue(f *pflag.Flag) string {
	if len(f.Annotations["classified"]) > 0 {
		return "CLASSIFIED"
	}
	return f.Value.String()
}

// newStatusz returns the page with the start time of the process, its Go version, the version of
// the component, and the served paths.
func (e *Endpoints) newStatusz(paths []string) *zpage {
	status := func() statuszv1beta1.Statusz {
		seconds, _ := metrics.GetProcessStart()
		started := time.Unix(int64(seconds), 0)
		v := version.Get()
		return statuszv1beta1.Statusz{
			TypeMeta: typeMeta("Statusz", "v1beta1"), ObjectMeta: metav1.ObjectMeta{Name: e.Component},
			StartTime: metav1.NewTime(started), UptimeSeconds: max(0, int64(time.Since(started).Seconds())),
			GoVersion: v.GoVersion, BinaryVersion: strings.TrimPrefix(v.GitVersion, "v"), Paths: topLevel(paths),
		}
	}

	return &zpage{
		kind: "Statusz",
		text: func(w io.Writer) {
			s := status()
			up := s.UptimeSeconds
			fmt.Fprintf(w, header, e.Component, "statusz")
			fmt.Fprintf(w, "\nStarted: %s\nUp: %d hr %02d min %02d sec\nGo version: %s\nBinary version: %s\nPaths: %s\n",
				s.StartTime.Format(time.UnixDate), up/3600, up/60%60, up%60, s.GoVersion, s.BinaryVersion, strings.Join(s.Paths, " "))
		},
		objects: map[string]func() runtime.Object{
			"v1alpha1": func() runtime.Object {
				s := statuszv1alpha1.Statusz(status())
				s.TypeMeta = typeMeta("Statusz", "v1alpha1")
				return &s
			},
			"v1beta1": func() runtime.Object { s := status(); return &s },
		},
	}
}

// topLevel returns the first elements of the paths, sorted and without duplicates, as in upstream.
func topLevel(paths []string) []string {
	var top []string
	for _, path := range paths {
		if first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/"); first != "" {
			top = append(top, "/"+first)
		}
	}
	slices.Sort(top)
	return slices.Compact(top)
}

// typeMeta returns the TypeMeta of a page in object form.
func typeMeta(kind, version string) metav1.TypeMeta {
	return metav1.TypeMeta{Kind: kind, APIVersion: zpagesGroup + "/" + version}
}

// ServeHTTP responds with the requested representation. Like upstream, v1alpha1 is deprecated, and
// served with a warning.
func (p *zpage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	wanted, ok := p.negotiateFormat(r.Header.Get("Accept"))
	if !ok {
		notAcceptable(w)
		return
	}
	if wanted.version == "" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		p.text(w)
		return
	}
	if wanted.version == "v1alpha1" {
		w.Header().Set("Warning", `299 - "This version of the `+strings.ToLower(p.kind)+
			` endpoint is deprecated. Please use a newer version."`)
	}
	w.Header().Set("Content-Type", wanted.format.MediaType+";g="+zpagesGroup+";v="+wanted.version+";as="+p.kind)
	// Only the connection can fail here, so the error cannot be sent to the caller.
	_ = wanted.newEncoder(r).Encode(p.objects[wanted.version](), w)
}
