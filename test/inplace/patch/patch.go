// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package patch makes copies of upstream's code that call package inplace. It inserts or replaces
// lines in a few files. The text at which it does so must occur exactly once in the file; the
// package depends on no other part of upstream's code.
package patch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const hook = "github.com/berth-k8s/berth/test/inplace/hook"

// Module describes the copied parts of a module and their patches.
type Module struct {
	parts   []part
	leftOut []string // folders that are not copied
	edits   []edit
	added   map[string]string // additional or completely replaced files
}

// part is a file or a folder of a module, and its target in the copy.
type part struct{ from, target string }

// edit inserts text after the text at in a file, or replaces at by it.
type edit struct {
	file, at, text string
	replace        bool
	everywhere     bool // apply to every Go file that contains at, at least one; file is not set
}

// Kubernetes is k8s.io/kubernetes.
var Kubernetes = Module{parts: []part{{".", "."}}, leftOut: []string{"CHANGELOG", "cluster", "LICENSES"},
	edits: kubernetesEdits, added: kubernetesAdded}

const (
	steps = "test/integration/scheduler/podgroup/stepsframework/stepsframework.go"
	asked = "if waits, inPlace := testCtx.Scheduler.WaitsInPlace(testCtx.Ctx, ns, podName); inPlace {\nreturn waits, nil\n}\n"
)

var kubernetesEdits = []edit{
	{file: "pkg/scheduler/scheduler.go", at: "type Scheduler struct {\n", text: "\tinPlace madeInPlace\n"},
	{file: "pkg/scheduler/scheduler.go", at: "\tsched.NextEntity = podQueue.Pop\n",
		text: "\tsched.inPlace = inPlace(ctx, client, &options)\n\tsched.SchedulingQueue = queueInPlace(ctx, podQueue, sched.inPlace)\n"},
	{file: "pkg/scheduler/scheduler.go", at: "func (sched *Scheduler) Run(ctx context.Context) {\n",
		text: "\tif sched.inPlace != nil {\n\t\tsched.inPlace.Run(ctx)\n\t\treturn\n\t}\n"},
	{file: "test/integration/util/util.go", at: "func SyncSchedulerInformerFactory(testCtx *TestContext) {\n",
		text: "\ttestCtx.Scheduler.FollowInPlace(testCtx.SchedulerCtx)\n"},
	// On a busy machine, an API server starts more slowly.
	{file: "test/integration/framework/test_server.go", replace: true,
		at: "(ctx, 100*time.Millisecond, 10*time.Second, true", text: "(ctx, 100*time.Millisecond, 2*time.Minute, true"},
	// Tests must query the scheduler that handles the pod.
	{file: steps, replace: true, at: "return podInUnschedulableEntities(testCtx.Scheduler.SchedulingQueue, podName), nil",
		text: asked + "return podInUnschedulableEntities(testCtx.Scheduler.SchedulingQueue, podName), nil"},
	{file: steps, replace: true, at: "return podInIncompletePodGroupPods(testCtx.Scheduler.SchedulingQueue, podName), nil",
		text: asked + "return podInIncompletePodGroupPods(testCtx.Scheduler.SchedulingQueue, podName), nil"},
	// Two schedulers must not call the same plugin, because some test plugins count their calls.
	{file: "pkg/scheduler/scheduler.go", at: "WithPreEnqueuePluginMap(preEnqueuePluginMap)",
		text: "WithPreEnqueuePluginMap(unlessInPlace(preEnqueuePluginMap))", replace: true},
	{file: "pkg/controller/nodelifecycle/node_lifecycle_controller.go", at: "func (nc *Controller) Run(ctx context.Context) {\n",
		text: "\tif nc.runsInPlace(ctx) {\n\t\treturn\n\t}\n"},
	{file: "pkg/controller/tainteviction/taint_eviction.go", at: "func (tc *Controller) Run(ctx context.Context) {\n",
		text: "\tif tc.runsInPlace(ctx) {\n\t\treturn\n\t}\n"},
}

var kubernetesAdded = map[string]string{
	"pkg/scheduler/inplace.go": `package scheduler

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientset "k8s.io/client-go/kubernetes"
	fwk "k8s.io/kube-scheduler/framework"
	v1 "k8s.io/api/core/v1"
	internalqueue "k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"` + hook + `"
)

type madeInPlace = hook.Made

// resizesInPlace is the scheduler's own queue, except for pods with a node: for their resizes, it
// answers for what runs in place of the scheduler.
type resizesInPlace struct {
	internalqueue.SchedulingQueue
	ctx  context.Context
	made hook.Made
}

func queueInPlace(ctx context.Context, own internalqueue.SchedulingQueue, made hook.Made) internalqueue.SchedulingQueue {
	if made == nil {
		return own
	}
	return resizesInPlace{own, ctx, made}
}

func (q resizesInPlace) GetPod(name, namespace string, group *v1.PodSchedulingGroup) (*framework.QueuedPodInfo, bool) {
	if info, found := q.SchedulingQueue.GetPod(name, namespace, group); found && info.Pod.Spec.NodeName == "" {
		return info, found
	}
	attempts, queued := q.made.Resizes(q.ctx, namespace, name)
	if !queued {
		return nil, false
	}
	return &framework.QueuedPodInfo{QueueingParams: framework.QueueingParams{Attempts: attempts}}, true
}

func (q resizesInPlace) UnschedulablePods() []*v1.Pod {
	list := q.SchedulingQueue.UnschedulablePods()
	pending, _ := q.PendingPods()
	for _, pod := range pending {
		if pod.Spec.NodeName != "" && q.made.Waits(q.ctx, pod.Namespace, pod.Name) {
			list = append(list, pod)
		}
	}
	return list
}

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
		FirstBackoff: time.Duration(o.podInitialBackoffSeconds) * time.Second,
		LastBackoff: time.Duration(o.podMaxBackoffSeconds) * time.Second,
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

// Copy copies the module from the folder from to the folder to, and applies the patches there. The
// module cache itself is read-only and cannot be overlaid.
func (m Module) Copy(from, to string) error {
	for _, p := range m.parts {
		if err := m.copyPart(filepath.Join(from, p.from), filepath.Join(to, p.target)); err != nil {
			return err
		}
	}
	for _, e := range m.edits {
		if err := e.apply(to); err != nil {
			return err
		}
	}
	for name, text := range m.added {
		if err := write(filepath.Join(to, name), text); err != nil {
			return err
		}
	}
	return nil
}

func (m Module) copyPart(from, to string) error {
	if is, err := os.Stat(from); err != nil || is.IsDir() {
		return errors.Join(err, os.CopyFS(to, writable{os.DirFS(from), m.leftOut}))
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return write(to, string(text))
}

func write(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(text), 0o600)
}

// writable is a file system without the folders in leftOut, and with permission to write its files,
// so that the copy can be changed.
type writable struct {
	fs.FS
	leftOut []string
}

func (w writable) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(w.FS, name)
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return name == "." && slices.Contains(w.leftOut, e.Name()) }), err
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

// apply applies the edit to the copy in a folder.
func (e edit) apply(folder string) error {
	if !e.everywhere {
		return e.applyTo(filepath.Join(folder, e.file))
	}
	var done int
	err := filepath.WalkDir(folder, func(name string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".go" {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(text), e.at) {
			return err
		}
		done++
		return e.applyTo(name)
	})

	if err == nil && done == 0 {
		err = fmt.Errorf("%q stands in no file", e.at)
	}
	return err
}

// applyTo applies the edit to a file.
func (e edit) applyTo(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if n := strings.Count(string(text), e.at); n != 1 {
		return fmt.Errorf("%s: %q stands there %d times, want once", name, e.at, n)
	}
	put := e.text
	if !e.replace {
		put = e.at + e.text
	}
	return os.WriteFile(name, []byte(strings.Replace(string(text), e.at, put, 1)), 0o600)
}
