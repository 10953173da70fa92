// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

const packing = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: /secret/path}
extenders: [{urlPrefix: "https://extender.example", tlsConfig: {keyData: c2VjcmV0}}]
profiles:
- schedulerName: berth-scheduler
  plugins:
    multiPoint: {enabled: [{name: Foreign}]}
    score: {disabled: [{name: ImageLocality}]}
  pluginConfig:
  - name: Foreign
    args: {password: secret}
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}
`

func inUse(t *testing.T, text string, added Added) *InUse {
	t.Helper()
	c, err := Parse("x.yaml", []byte(text), Options{Outside: map[string]plugins.Point{"Foreign": plugins.Score}})
	if err != nil {
		t.Fatal(err)
	}
	u, err := c.InUse(added, groups.Gates{Generic: true})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestWhatASchedulerTellsIsWhatItDecidesBy verifies that a scheduler's published configuration
// yields the same profiles, and contains no credentials.
func TestWhatASchedulerTellsIsWhatItDecidesBy(t *testing.T) {
	u := inUse(t, packing, Added{KeepBudgets: []string{"*"}, Gentle: []string{"berth-scheduler"}, PreemptionDelay: time.Minute})
	text := u.OnLease("me")
	if strings.Contains(text, "secret") || strings.Contains(text, "c2VjcmV0") || strings.Contains(text, "extender.example") {
		t.Errorf("it tells secrets: %s", text)
	}
	read := ReadInUse([]byte(text))
	if read == nil || read.Holder != "me" || strings.Join(read.Outside, " ") != "Foreign extenders" || !read.Groups.Generic {
		t.Fatalf("read as %+v", read)
	}
	profiles, err := read.compileProfiles()
	if err != nil || len(profiles) != 1 {
		t.Fatalf("%v, %v", profiles, err)
	}
	p := profiles[0]
	if p.SchedulerName != "berth-scheduler" || p.Has(plugins.Score, "ImageLocality") || !p.KeepBudgets || !p.GentlePreemption || p.PreemptionDelay != time.Minute {
		t.Errorf("%+v", p)
	}
	if !strings.Contains(text, "MostAllocated") {
		t.Errorf("no arguments: %s", text)
	}
	if defaults, err := inUse(t, "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n", Added{}).compileProfiles(); err != nil || defaults[0].SchedulerName != "default-scheduler" {
		t.Errorf("without profiles: %v, %v", defaults, err)
	}
	long := *u
	long.Profiles, _ = json.Marshal(strings.Repeat("x", mostOnLease))
	if long.OnLease("me") != "" {
		t.Error("a document that is too long for a Lease is written there")
	}
}

var now = time.Unix(1e9, 0)

// lease returns the Lease at (namespace/name), which the holder last renewed the given duration
// ago. text is the document on the Lease, if any.
func lease(at, holder string, age time.Duration, text string) *coordinationv1.Lease {
	namespace, name, _ := strings.Cut(at, "/")
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	l.Spec.HolderIdentity, l.Spec.RenewTime = &holder, &metav1.MicroTime{Time: now.Add(-age)}
	if text != "" {
		l.Annotations = map[string]string{InUseAnnotation: text}
	}
	return l
}

// TestProfilesOfACluster verifies that the result contains the published profiles, and the default
// profile if kube-scheduler leads or no scheduler has responded.
func TestProfilesOfACluster(t *testing.T) {
	own := inUse(t, strings.NewReplacer("extenders:", "#", "    multiPoint: {enabled: [{name: Foreign}]}\n", "", "  - name: Foreign\n    args: {password: secret}\n", "").Replace(packing), Added{})
	second := lease("berth-system/berth-scheduler", "b", time.Second, own.OnLease("b"))
	tenants := inUse(t, "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: [{schedulerName: tenant-scheduler}]\n", Added{})
	upstream := lease("kube-system/kube-scheduler", "control-plane_1", time.Second, "")
	standby := inUse(t, "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n", Added{})
	standby.Holder = "b"
	for name, row := range map[string]struct {
		told    *InUse
		leases  []*coordinationv1.Lease
		serves  string
		assumed string
	}{
		"nobody tells":     {nil, nil, "default-scheduler", "no scheduler of this name could be asked"},
		"one is asked":     {own, nil, "berth-scheduler", ""},
		"one on its Lease": {nil, []*coordinationv1.Lease{second}, "berth-scheduler default-scheduler", "no scheduler of this name could be asked"},
		"beside kube-scheduler": {nil, []*coordinationv1.Lease{upstream, second}, "berth-scheduler default-scheduler",
			"kube-scheduler, which leads by the Lease kube-system/kube-scheduler as control-plane_1, does not publish it"},
		"kube-scheduler has taken over":  {nil, []*coordinationv1.Lease{lease("kube-system/kube-scheduler", "other", time.Second, own.OnLease("b"))}, "default-scheduler", "kube-scheduler, which leads by the Lease kube-system/kube-scheduler as other, does not"},
		"it ended":                       {nil, []*coordinationv1.Lease{lease("berth-system/berth-scheduler", "", time.Hour, own.OnLease("b"))}, "berth-scheduler default-scheduler", "the scheduler of the Lease berth-system/berth-scheduler, which no longer runs"},
		"one ended, another runs":        {own, []*coordinationv1.Lease{lease("kube-system/b", "b", time.Hour, inUse(t, "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n", Added{}).OnLease("b"))}, "berth-scheduler", ""},
		"a kube-scheduler that ended":    {own, []*coordinationv1.Lease{lease("kube-system/kube-scheduler", "x", time.Hour, "")}, "berth-scheduler", ""},
		"a Lease of a node, or of else":  {own, []*coordinationv1.Lease{lease("kube-node-lease/kube-scheduler", "x", 0, ""), lease("kube-system/other", "x", 0, "{}")}, "berth-scheduler", ""},
		"a tenant's Lease":               {own, []*coordinationv1.Lease{lease("a-tenant/berth-scheduler", "b", time.Second, tenants.OnLease("b"))}, "berth-scheduler", ""},
		"a tenant's Lease, none asked":   {nil, []*coordinationv1.Lease{lease("a-tenant/kube-scheduler", "b", time.Second, tenants.OnLease("b"))}, "default-scheduler", "no scheduler of this name could be asked"},
		"a Lease that is named":          {nil, []*coordinationv1.Lease{lease("named/scheduler", "b", time.Second, tenants.OnLease("b")), lease("named/other", "b", time.Second, own.OnLease("b"))}, "tenant-scheduler default-scheduler", "no scheduler of this name could be asked"},
		"Berth on standby":               {standby, []*coordinationv1.Lease{upstream}, "default-scheduler", "kube-scheduler, which leads by the Lease kube-system/kube-scheduler as control-plane_1, decides by the same configuration as Berth"},
		"Berth that does not annotate":   {standby, []*coordinationv1.Lease{lease("kube-system/kube-scheduler", "b", time.Second, "")}, "default-scheduler", ""},
		"plugins that nobody else knows": {inUse(t, packing, Added{}), nil, "berth-scheduler", "Foreign, extenders, which cannot be called"},
	} {
		r, err := RunningOf(row.told, row.leases, []string{"kube-system", "berth-system", "named/scheduler"}, now)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var serves []string
		for _, p := range r.Profiles {
			serves = append(serves, p.SchedulerName)
		}
		if strings.Join(serves, " ") != row.serves || !strings.Contains(r.Assumed, row.assumed) || (r.Assumed == "") != (row.assumed == "") {
			t.Errorf("%s: serves %v; %s", name, serves, r.Assumed)
		}
	}
}

// TestASchedulerThatStopped verifies that a scheduler is reported as stopped if its Lease was
// released or not renewed for long, unless a running scheduler serves its names. Without a Lease no
// scheduler is reported.
func TestASchedulerThatStopped(t *testing.T) {
	const upstream, own = "kube-system/kube-scheduler", "berth-system/berth-scheduler"
	of := func(names ...string) *InUse {
		return inUse(t, "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: [{schedulerName: "+
			strings.Join(names, "}, {schedulerName: ")+"}]\n", Added{})
	}
	of2 := of("default-scheduler", "packing")
	long := lease(upstream, "x", 3*time.Minute, "")
	long.Spec.LeaseDurationSeconds = new(int32(137))
	unheld := lease(upstream, "", time.Hour, "")
	unheld.Spec.RenewTime = nil
	for name, row := range map[string]struct {
		told   *InUse
		leases []*coordinationv1.Lease
		want   string
	}{
		"no Lease":                  {nil, nil, ""},
		"a Lease never held":        {nil, []*coordinationv1.Lease{unheld}, ""},
		"kube-scheduler runs":       {nil, []*coordinationv1.Lease{lease(upstream, "x", 20*time.Second, "")}, ""},
		"a longer Lease":            {nil, []*coordinationv1.Lease{long}, ""},
		"kube-scheduler was killed": {nil, []*coordinationv1.Lease{lease(upstream, "x", 40*time.Second, "")}, "default-scheduler: x has not renewed the Lease kube-system/kube-scheduler since 2001-09-09 01:46:00Z"},
		"kube-scheduler ended":      {nil, []*coordinationv1.Lease{lease(upstream, "", time.Second, "")}, "default-scheduler: the Lease kube-system/kube-scheduler was released at 2001-09-09 01:46:39Z"},
		"Berth ended":               {nil, []*coordinationv1.Lease{lease(upstream, "", time.Second, of2.OnLease("b"))}, "default-scheduler, packing: the Lease"},
		"it took over and ended":    {nil, []*coordinationv1.Lease{lease(upstream, "x", time.Hour, of2.OnLease("b"))}, "default-scheduler: x has"},
		"another runs instead":      {nil, []*coordinationv1.Lease{lease(upstream, "", time.Second, of2.OnLease("b")), lease(own, "c", 0, of("default-scheduler").OnLease("c"))}, "packing: the Lease"},
		"one asked runs instead":    {of2, []*coordinationv1.Lease{lease(upstream, "", time.Second, of2.OnLease("b"))}, ""},
		"the second ended":          {nil, []*coordinationv1.Lease{lease(upstream, "x", 0, ""), lease(own, "", time.Hour, of("berth-scheduler").OnLease("b"))}, "berth-scheduler: the Lease berth-system/berth-scheduler was released at"},
		"both ended":                {nil, []*coordinationv1.Lease{lease(own, "b", time.Hour, of("default-scheduler").OnLease("b")), lease(upstream, "", time.Second, "")}, "default-scheduler: the Lease kube-system/kube-scheduler"},
		"a tenant's":                {nil, []*coordinationv1.Lease{lease("tenant/kube-scheduler", "b", time.Hour, of2.OnLease("b"))}, ""},
		"another program's":         {nil, []*coordinationv1.Lease{lease("kube-system/kube-controller-manager", "b", time.Hour, "")}, ""},
	} {
		r, err := RunningOf(row.told, row.leases, []string{"kube-system", "berth-system"}, now)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for i := range r.Stopped {
			lines = append(lines, r.Stopped[i].String())
		}
		if got := strings.Join(lines, " "); row.want == "" && got != "" || len(lines) > 1 || !strings.Contains(got, row.want) {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}
}
