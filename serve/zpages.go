package serve

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/version"
)

// zpages is the version of the structured answers; upstream's.
const zpages = "config.k8s.io/v1beta1"

const header = `
%s %s
Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.
`

func wantsJSON(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "application/json")
}

func (e *Endpoints) object(kind string, more map[string]any) map[string]any {
	more["apiVersion"], more["kind"] = zpages, kind
	more["metadata"] = map[string]any{"name": e.Component}
	return more
}

// flagz tells every flag's value, given or default.
func (e *Endpoints) flagz(w http.ResponseWriter, r *http.Request) {
	values := map[string]string{}
	var lines strings.Builder
	e.Flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden && !f.Changed {
			return
		}
		values[f.Name] = f.Value.String()
		fmt.Fprintf(&lines, "%s=%s\n", f.Name, f.Value)
	})
	if wantsJSON(r) {
		writeJSON(w, e.object("Flagz", map[string]any{"flags": values}))
		return
	}
	fmt.Fprintf(w, header, e.Component, "flagz")
	fmt.Fprint(w, lines.String())
}

// statusz tells what runs here, and since when.
func (e *Endpoints) statusz(w http.ResponseWriter, r *http.Request, paths []string) {
	seconds, _ := metrics.GetProcessStart()
	started := time.Unix(int64(seconds), 0)
	up := time.Since(started)
	v := version.Get()
	if wantsJSON(r) {
		writeJSON(w, e.object("Statusz", map[string]any{
			"startTime":     metav1.NewTime(started),
			"uptimeSeconds": int64(up.Seconds()),
			"goVersion":     v.GoVersion,
			"binaryVersion": strings.TrimPrefix(v.GitVersion, "v"),
			"paths":         paths,
		}))
		return
	}
	fmt.Fprintf(w, header, e.Component, "statusz")
	fmt.Fprintf(w, `
Started: %s
Up: %d hr %02d min %02d sec
Go version: %s
Binary version: %s
Paths: %s
`, started.Format(time.UnixDate), int(up.Hours()), int(up.Minutes())%60, int(up.Seconds())%60,
		v.GoVersion, strings.TrimPrefix(v.GitVersion, "v"), strings.Join(paths, " "))
}
