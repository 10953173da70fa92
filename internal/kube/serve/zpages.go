// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	flagzv1alpha1 "k8s.io/apiserver/pkg/server/flagz/api/v1alpha1"
	flagzv1beta1 "k8s.io/apiserver/pkg/server/flagz/api/v1beta1"
	statuszv1alpha1 "k8s.io/apiserver/pkg/server/statusz/api/v1alpha1"
	statuszv1beta1 "k8s.io/apiserver/pkg/server/statusz/api/v1beta1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/version"
)

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
