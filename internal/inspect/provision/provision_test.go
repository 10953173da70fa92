// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

var rewrite = flag.Bool("rewrite", false, "write what is said now into testdata")

// TestStories verifies the output of the stories in the folders of testdata: pending pods
// (cluster.yaml), offers (catalog.yaml and, for NodePools, the instance types), and the expected
// output (want.txt). Stories named replace- also exchange existing nodes. An optional file
// spot-share has the maximum share of spot.
func TestStories(t *testing.T) {
	folders, err := filepath.Glob("testdata/*/cluster.yaml")
	if err != nil || len(folders) == 0 {
		t.Fatal(err, "no story")
	}
	for _, file := range folders {
		dir := filepath.Dir(file)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			plan := planOf(t, dir)
			var buf, claims bytes.Buffer
			page := answer.NewPage(&buf)
			plan.Print(page, true)
			if err := page.Flush(); err != nil {
				t.Fatal(err)
			}
			if err := plan.WriteNodeClaims(&claims); err != nil {
				t.Fatal(err)
			}
			if claim, _, ok := strings.Cut(strings.TrimPrefix(claims.String(), "---\n"), "---\n"); ok || claim != "" {
				buf.WriteString("\nthe first NodeClaim:\n" + claim)
			}
			want := filepath.Join(dir, "want.txt")
			if *rewrite {
				if err := os.WriteFile(want, buf.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			text, err := os.ReadFile(want)
			if err != nil {
				t.Fatal(err)
			}
			if buf.String() != string(text) {
				t.Errorf("said:\n%s\nwant:\n%s", buf.String(), text)
			}
		})
	}
}

func planOf(t *testing.T, dir string) *Plan {
	t.Helper()
	set, err := manifest.Read([]string{filepath.Join(dir, "cluster.yaml")}, nil, manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	set.Expand(1)
	w, err := simulate.Open(set, simulate.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "catalog*"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	c, err := ReadCatalog(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{}
	if text, err := os.ReadFile(filepath.Join(dir, "spot-share")); err == nil {
		share, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		if err != nil {
			t.Fatal(err)
		}
		o.Spot = &share
	}
	plan, err := Make(w, c, o)
	if err != nil {
		t.Fatal(err)
	}
	checkPlan(t, w, plan)
	if strings.HasPrefix(filepath.Base(dir), "replace-") {
		open := func() (*simulate.World, error) {
			twin, err := w.Twin()
			if err == nil {
				twin.Settle()
			}
			return twin, err
		}
		if err := plan.Replace(open, o); err != nil {
			t.Fatal(err)
		}
	}
	return plan
}

// checkPlan checks that the plan matches the world: the pods of each node are on it, no pod is both
// placed and pending, and the costs add up.
func checkPlan(t *testing.T, w *simulate.World, p *Plan) {
	t.Helper()
	cost := 0.0
	for _, n := range p.Nodes {
		cost += n.Price
		for _, pod := range n.Pods {
			namespace, name, _ := strings.Cut(pod, "/")
			if f, ok := w.Find(namespace, name); !ok || f.Pod == nil || f.Pod.NodeName != n.Name {
				t.Errorf("pod %s is not on %s", pod, n.Name)
			}
		}
	}
	if diff := cost - p.Hour; diff > 1e-6 || diff < -1e-6 {
		t.Errorf("the nodes cost %v, and the plan says %v", cost, p.Hour)
	}
	if p.Least > p.Hour+1e-9 {
		t.Errorf("the bound %v is above the cost %v", p.Least, p.Hour)
	}
	for _, waiting := range p.Pending {
		if f, _ := w.Find(waiting.Namespace, waiting.Name); f.Pod != nil && f.Pod.NodeName != "" {
			t.Errorf("pod %s/%s is on %s and said to be pending", waiting.Namespace, waiting.Name, f.Pod.NodeName)
		}
	}
}

// TestBadCatalogs verifies that a bad entry of a catalog is reported with its file, its line if
// known, and its field.
func TestBadCatalogs(t *testing.T) {
	pool := "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: p}\nspec:\n  template:\n    spec:\n      nodeClassRef: {}\n      requirements:\n"
	for text, want := range map[string]string{
		"kind: Node\napiVersion: v1\nmetadata: {name: a}\n":                                        "berth.dev/price]: required",
		"kind: Node\napiVersion: v1\nmetadata: {name: a, annotations: {berth.dev/price: cheap}}\n": `"cheap": must be a number`,
		"kind: Node\napiVersion: v1\nmetadata: {name: a, annotations: {berth.dev/price: \"1\"}}\n": "status.allocatable: required",
		"kind: Pod\napiVersion: v1\nmetadata: {name: a}\n":                                         "kind Pod: a catalog has",
		"apiVersion: v1\n": "has no kind",
		pool + "      - {key: a, operator: Near, values: [b]}\n":                                                  `requirements[0].operator: "Near": must be one of`,
		pool + "      - {key: a, operator: Gt, values: [b]}\n":                                                    "must be one whole number",
		pool + "      - {key: a, operator: In}\n":                                                                 "values: required",
		"---\nkind: Node\napiVersion: v1\nmetadata: {name: a}\n---\n" + pool + "      - {key: a, operater: In}\n": ":14: spec.template.spec.requirements[0]",
		`[{"name": "a", "architecture": "amd64", "resources": {"cpu": "1", "memory": "1Gi"}}]`:                    `.offerings of "a": required`,
		pool + "      - {key: a, operator: Exists}\n":                                                             "NodePools without instance types",
	} {
		file := filepath.Join(t.TempDir(), "catalog.yaml")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := ReadCatalog([]string{file}, nil)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s\nsaid: %v\nwant: %s", text, err, want)
		}
	}
}

// TestNothingPendingCostsNothing verifies that a plan without pending pods has no nodes and costs
// nothing.
func TestNothingPendingCostsNothing(t *testing.T) {
	w, err := simulate.Open(manifest.Assemble("test", nil), simulate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := &Catalog{Offers: []Offer{{Pool: "p", Price: 1, Node: &v1.Node{}, pool: -1}}}
	p, err := Make(w, c, Options{})
	if err != nil || len(p.Nodes) != 0 || p.Hour != 0 || fmt.Sprint(p.Pending) != "[]" {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestAFolderOfOtherObjectsIsRefusedSoon verifies that reading a cluster's manifests as a catalog,
// an easy mistake, stops after mostFaults faults.
func TestAFolderOfOtherObjectsIsRefusedSoon(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - {name: c, image: i}\n---\n"
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := ReadCatalog([]string{"-"}, strings.NewReader(strings.Repeat(pod, 20_000)))
	runtime.ReadMemStats(&after)

	if err == nil || strings.Count(err.Error(), "kind Pod: a catalog has") != mostFaults {
		t.Errorf("want %d faults named: %.1000v", mostFaults, err)
	}
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 100 {
		t.Errorf("it took %d MiB to read 2 MiB", took)
	}
}
