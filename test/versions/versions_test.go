// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/berth-k8s/berth/test/internal/binaries"
)

var (
	minors = flag.String("versions", "", "minors of Kubernetes, as 1.34,1.35: the newest release that the module proxy has of each; or releases, as v1.34.0")
	ready  = flag.String("programs", "", "folder with etcd, kube-apiserver, kube-controller-manager and kube-scheduler of the release that -versions names, which are then not built")
	cache  = flag.String("cache", "", "folder in which they are built and kept (default: berth-versions in the user's cache)")
	logs   = flag.String("logs", "", "folder for the logs of all processes (default: a temporary one)")
)

// promise is a property of Berth that must hold with every version.
type promise struct {
	name string
	run  func(*cluster)
}

// promises lists the promises, which are verified one after the other, each in a separate
// namespace.
var promises = []promise{
	{"the API server takes every manifest, without a warning", (*cluster).takesEveryManifest},
	{"installed by kustomize, Berth places itself", (*cluster).placesItself},
	{"a Deployment's pods run, spread over the zones", (*cluster).deploymentRuns},
	{"three taints: who tolerates two runs on, and is not placed", (*cluster).threeTaints},
	{"NoExecute evicts now, after tolerationSeconds, or never", (*cluster).noExecute},
	{"a countdown outlasts the controller that began it", (*cluster).countdownSurvives},
	{"a silent node is tainted and emptied, and taken back", (*cluster).silentNode},
	{"cordon and pressure become taints", (*cluster).conditionsBecomeTaints},
	{"preemption takes the pod that no budget protects", (*cluster).preemption},
	{"priorities: unknown refused, Never waits", (*cluster).priorities},
	{"overhead counts", (*cluster).overhead},
	{"a pod that waits says why, in kube-scheduler's words", (*cluster).pendingSaysWhy},
	{"kubectl drain goes by a budget", (*cluster).drain},
	{"a volume is bound where its pod runs", (*cluster).volume},
	{"a device is claimed, and waited for", (*cluster).device},
	{"the webhook: a namespace with nodes of its own", (*cluster).webhook},
	{"berth check: the version is named, no problem", (*cluster).check},
	{"berth check --for scheduler: kube-scheduler's rights are enough", (*cluster).checkAsKubeScheduler},
	{"berth explain: what is suggested helps", (*cluster).explain},
	{"berth what-if taint, drain: foretold, nothing done", (*cluster).whatIf},
	{"berth record, and explain and simulate of it", (*cluster).record},
	{"berth ui shows the cluster", (*cluster).page},
	{"metrics by HTTPS, asked who one is", (*cluster).metrics},
	{"the Lease: Berth, Berth, kube-scheduler, Berth", (*cluster).handOver},
	{"with kube-scheduler's rights: preemption", (*cluster).preemption},
	{"with kube-scheduler's rights: a volume", (*cluster).volume},
	{"with kube-scheduler's rights: a device", (*cluster).device},
	{"no part logs an error", (*cluster).noErrors},
}

// bare lists the promises for a cluster without a webhook and without the API group
// resource.k8s.io, as was common before it became stable.
var bare = []promise{
	{"bare: Berth places itself", (*cluster).placesItself},
	{"bare: a Deployment's pods run, spread over the zones", (*cluster).deploymentRuns},
	{"bare: NoExecute evicts now, after tolerationSeconds, or never", (*cluster).noExecute},
	{"bare: a countdown outlasts the controller that began it", (*cluster).countdownSurvives},
	{"bare: preemption takes the pod that no budget protects", (*cluster).preemption},
	{"bare: a pod that waits says why, in kube-scheduler's words", (*cluster).pendingSaysWhy},
	{"bare: berth check misses resource.k8s.io", (*cluster).checkMissesDevices},
	{"bare: berth explain: what is suggested helps", (*cluster).explain},
	{"bare: berth what-if taint, drain: foretold, nothing done", (*cluster).whatIf},
	{"bare: berth record, and explain and simulate of it", (*cluster).record},
	{"bare: berth ui shows the cluster", (*cluster).page},
	{"bare: no part logs an error", (*cluster).noErrors},
}

func TestVersions(t *testing.T) {
	if *minors == "" {
		t.Skip("no versions were named: see -versions")
	}
	work := t.TempDir()
	berth, err := binaries.BuildIn(work, "../..")
	if err != nil {
		t.Fatal(err)
	}
	found := &results{cells: map[string]string{}}
	t.Cleanup(func() { found.write(os.Stdout) })
	for _, named := range strings.Split(*minors, ",") {
		t.Run(named, func(t *testing.T) {
			release, bin := built(t, named)
			found.releases = append(found.releases, release)
			dir := filepath.Join(folder(t, *logs, work), release)
			c := start(t, release, bin, berth, filepath.Join(dir, "all"))
			c.install("webhook", "ui")
			c.beginWebhook()
			found.play(c, promises)
			c = start(t, release, bin, berth, filepath.Join(dir, "bare"), "--runtime-config=resource.k8s.io/v1=false")
			c.install()
			found.play(c, bare)
		})
	}
}

// built builds the programs of a release, or of the newest release of a minor version.
func built(t *testing.T, named string) (release, bin string) {
	t.Helper()
	var err error
	if release = named; !strings.HasPrefix(named, "v") {
		if release, err = Newest(t.Context(), named); err != nil {
			t.Fatal(err)
		}
	}
	if *ready != "" {
		return release, folder(t, *ready, "")
	}
	home, _ := os.UserCacheDir()
	began := time.Now()
	if bin, err = Build(t.Context(), folder(t, *cache, filepath.Join(home, "berth-versions")), release); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s is built, in %s", release, time.Since(began).Round(time.Second))
	return release, bin
}

// folder returns the absolute path of a folder, or of another folder if no name is given.
func folder(t *testing.T, named, otherwise string) string {
	t.Helper()
	if named == "" {
		named = otherwise
	}
	path, err := filepath.Abs(named)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// results holds the results of the promises, by release.
type results struct {
	releases []string
	names    []string
	cells    map[string]string // results by name of the promise and release
	notes    []string
}

// play verifies the promises on a cluster, and then stops the cluster.
func (r *results) play(c *cluster, promises []promise) {
	defer c.stop()
	for i, one := range promises {
		if _, known := r.cells[one.name]; !known {
			r.cells[one.name] = ""
			r.names = append(r.names, one.name)
		}
		began, tried := time.Now(), false
		ok := c.Run(one.name, func(t *testing.T) {
			tried = true
			at := c.in(t, fmt.Sprintf("check-%d", i+1))
			at.note = func(text string) { r.notes = append(r.notes, fmt.Sprintf("%s, %s: %s", c.release, one.name, text)) }
			one.run(at)
		})
		if !tried { // not selected by -run
			r.cells[one.name+c.release] = "-"
			continue
		}
		r.cells[one.name+c.release] = fmt.Sprintf("%s %.0f s", map[bool]string{true: "ok", false: "FAILED"}[ok], time.Since(began).Seconds())
	}
}

func (r *results) write(to *os.File) {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\n\t%s\n", strings.Join(r.releases, "\t"))
	for _, name := range r.names {
		fmt.Fprint(table, name)
		for _, release := range r.releases {
			fmt.Fprint(table, "\t", r.cells[name+release])
		}
		fmt.Fprintln(table)
	}
	_ = table.Flush() // writes to standard output
	for _, note := range r.notes {
		fmt.Fprintln(to, note)
	}
}
