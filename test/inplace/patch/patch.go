// Package patch makes a copy of upstream's code that hands over to package inplace: lines are put
// into a few files. What they are put behind must be there exactly once; nothing else of upstream's
// is written down here.
package patch

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const hook = "github.com/berth-k8s/berth/test/inplace/hook"

// edit puts text behind what stands in a file, or in its place.
type edit struct {
	file, at, text string
	replace        bool
}

var edits = []edit{
	{file: "pkg/scheduler/scheduler.go", at: "type Scheduler struct {\n", text: "\tinPlace madeInPlace\n"},
	{file: "pkg/scheduler/scheduler.go", at: "\tsched.NextPod = podQueue.Pop\n", text: "\tsched.inPlace = inPlace(ctx, client, &options)\n"},
	{file: "pkg/scheduler/scheduler.go", at: "func (sched *Scheduler) Run(ctx context.Context) {\n",
		text: "\tif sched.inPlace != nil {\n\t\tsched.inPlace.Run(ctx)\n\t\treturn\n\t}\n"},
	{file: "test/integration/util/util.go", at: "func SyncSchedulerInformerFactory(testCtx *TestContext) {\n",
		text: "\ttestCtx.Scheduler.FollowInPlace(testCtx.SchedulerCtx)\n"},
	// Whether a pod is gated is asked of the scheduler that has it.
	{file: "test/integration/scheduler/podgroup/podgroup_test.go", replace: true,
		at: "return podInUnschedulablePods(t, testCtx.Scheduler.SchedulingQueue, podName), nil",
		text: "if waits, inPlace := testCtx.Scheduler.WaitsInPlace(testCtx.Ctx, ns, podName); inPlace {\nreturn waits, nil\n}\n" +
			"return podInUnschedulablePods(t, testCtx.Scheduler.SchedulingQueue, podName), nil"},
	// What counts its calls must not be called by two schedulers.
	{file: "pkg/scheduler/scheduler.go", at: "WithPreEnqueuePluginMap(preEnqueuePluginMap)", text: "WithPreEnqueuePluginMap(unlessInPlace(preEnqueuePluginMap))", replace: true},
	{file: "pkg/controller/nodelifecycle/node_lifecycle_controller.go", at: "func (nc *Controller) Run(ctx context.Context) {\n",
		text: "\tif nc.runsInPlace(ctx) {\n\t\treturn\n\t}\n"},
	{file: "pkg/controller/tainteviction/taint_eviction.go", at: "func (tc *Controller) Run(ctx context.Context) {\n",
		text: "\tif tc.runsInPlace(ctx) {\n\t\treturn\n\t}\n"},
}

// added are files that upstream does not have.
var added = map[string]string{
	"pkg/scheduler/inplace.go": `package scheduler

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientset "k8s.io/client-go/kubernetes"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"` + hook + `"
)

type madeInPlace = hook.Made

// FollowInPlace has what runs in place of the scheduler, if anything does, know the cluster.
func (sched *Scheduler) FollowInPlace(ctx context.Context) {
	if sched.inPlace != nil {
		sched.inPlace.Follow(ctx)
	}
}

// WaitsInPlace reports whether what runs in place of the scheduler, if anything does, has the pod
// wait.
func (sched *Scheduler) WaitsInPlace(ctx context.Context, namespace, name string) (waits, inPlace bool) {
	return sched.inPlace != nil && sched.inPlace.Waits(ctx, namespace, name), sched.inPlace != nil
}

func inPlace(ctx context.Context, client clientset.Interface, o *schedulerOptions) hook.Made {
	if hook.NewScheduler == nil {
		return nil
	}
	made := hook.Scheduler{
		Client: client, KubeConfig: o.kubeConfig, Profiles: o.profiles, Extenders: o.extenders,
		Plugins:      map[string]func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error){},
		FirstBackoff: time.Duration(o.podInitialBackoffSeconds) * time.Second, LastBackoff: time.Duration(o.podMaxBackoffSeconds) * time.Second,
		MaxWait:        o.podMaxInUnschedulablePodsDuration,
		PodsToActivate: func() fwk.StateData { return framework.NewPodsToActivate() },
	}
	for name, factory := range o.frameworkOutOfTreeRegistry {
		made.Plugins[name] = factory
	}
	return hook.NewScheduler(ctx, made)
}

func unlessInPlace[M map[string]map[string]fwk.PreEnqueuePlugin](m M) M {
	if hook.NewScheduler == nil {
		return m
	}
	return nil
}
`,
	"pkg/controller/nodelifecycle/inplace.go": `package nodelifecycle

import (
	"context"
	"sync"

	"` + hook + `"
)

func (nc *Controller) runsInPlace(ctx context.Context) bool {
	if hook.RunNodeHealth == nil {
		return false
	}
	defer nc.nodeUpdateQueue.ShutDown() // else the tests look for what still runs, for ten minutes
	defer nc.podUpdateQueue.ShutDown()
	if nc.taintManager != nil { // SeparateTaintEvictionController is off: this controller runs the other
		var running sync.WaitGroup
		defer running.Wait()
		running.Go(func() { nc.taintManager.Run(ctx) })
	}
	hook.RunNodeHealth(ctx, hook.NodeHealth{
		Client: nc.kubeClient, MonitorPeriod: nc.nodeMonitorPeriod, MonitorGracePeriod: nc.nodeMonitorGracePeriod,
		StartupGracePeriod: nc.nodeStartupGracePeriod, EvictionRate: nc.evictionLimiterQPS, SecondaryRate: nc.secondaryEvictionLimiterQPS,
		UnhealthyZone: nc.unhealthyZoneThreshold, LargeCluster: nc.largeClusterThreshold,
	})
	return true
}
`,
	"pkg/controller/tainteviction/inplace.go": `package tainteviction

import (
	"context"

	"` + hook + `"
)

func (tc *Controller) runsInPlace(ctx context.Context) bool {
	if hook.RunEviction == nil {
		return false
	}
	defer tc.nodeUpdateQueue.ShutDown()
	defer tc.podUpdateQueue.ShutDown()
	hook.RunEviction(ctx, tc.client)
	return true
}
`,
	"test/integration/util/inplace.go": `package util

import _ "github.com/berth-k8s/berth/test/inplace"
`,
}

// Copy copies the module k8s.io/kubernetes from the folder module into the folder to, with the
// patches in it. The module cache itself can neither be changed nor be overlaid.
func Copy(module, to string) error {
	patched := map[string]string{}
	for _, e := range edits {
		text, read := patched[e.file]
		if !read {
			data, err := os.ReadFile(filepath.Join(module, e.file))
			if err != nil {
				return err
			}
			text = string(data)
		}
		var err error
		if patched[e.file], err = e.apply(text); err != nil {
			return err
		}
	}
	if err := os.CopyFS(to, writable{os.DirFS(module)}); err != nil {
		return err
	}
	maps.Copy(patched, added)
	for name, text := range patched {
		if err := os.WriteFile(filepath.Join(to, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// writable leaves out what no test is built from, and lets the copy be changed.
type writable struct{ fs.FS }

func (w writable) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(w.FS, name)
	if name == "." {
		entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool {
			return e.Name() == "CHANGELOG" || e.Name() == "cluster" || e.Name() == "LICENSES"
		})
	}
	return entries, err
}

func (w writable) Open(name string) (fs.File, error) {
	file, err := w.FS.Open(name)
	if err != nil {
		return nil, err
	}
	return writableFile{file}, nil
}

type writableFile struct{ fs.File }

func (f writableFile) Stat() (fs.FileInfo, error) {
	info, err := f.File.Stat()
	if err != nil {
		return nil, err
	}
	return writableInfo{info}, nil
}

type writableInfo struct{ fs.FileInfo }

func (i writableInfo) Mode() fs.FileMode { return i.FileInfo.Mode() | 0o200 }

func (e edit) apply(text string) (string, error) {
	if n := strings.Count(text, e.at); n != 1 {
		return "", fmt.Errorf("%s: %q stands there %d times, want once", e.file, e.at, n)
	}
	if e.replace {
		return strings.Replace(text, e.at, e.text, 1), nil
	}
	return strings.Replace(text, e.at, e.at+e.text, 1), nil
}
