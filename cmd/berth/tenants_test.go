// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
	"github.com/berth-k8s/berth/internal/world/hostile"
)

var (
	offlineTenants = flag.Int("tenants", 2, "tenants of TestCommandsEndWhateverATenantStores")
	offlineSeed    = flag.Uint64("tenantseed", 0, "the first of them")
	everyCommand   = flag.Bool("every-command", false, "run every command for each of them, not every second")
)

// asCommand is the environment variable that makes the test binary run berth.
const asCommand = "BERTH_TEST_AS_COMMAND"

// Limits of a command that reads a tenant's cluster. A tenant stores at most roomOfTenant bytes of
// text.
const (
	mostTimeOfCommand   = 60 * time.Second // CPU time
	mostMemoryOfCommand = 5 << 29          // 2.5 GiB
	roomOfTenant        = 8 << 20
)

// asked lists the commands that read a recording.
var asked = []string{
	"simulate -o json", "simulate --for 1m -o json", "explain pod/ordinary -n other", "explain -l app=web -A", "pending -A", "capacity",
	"what-if drain node/node-1", "what-if add-nodes 2 --like node-1", "rebalance", "evictions",
}

// TestCommandsEndWhateverATenantStores verifies that every command that reads a cluster or its
// recording finishes within the limits, and does not fail because of one tenant's objects: objects
// of every kind, each with a field of the maximum length, and workloads of absurd sizes without any
// pods. Each command takes seconds of CPU time, so by default it reads the objects of every second
// tenant only.
func TestCommandsEndWhateverATenantStores(t *testing.T) {
	// Runs with the race detector use -short, because the detector multiplies time and memory.
	if testing.Short() {
		t.Skip("bounds the time and memory of processes: not with -short")
	}
	neutral(t)
	for seed := *offlineSeed; seed < *offlineSeed+uint64(*offlineTenants); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			api := apitest.New(t)
			village(t, api)
			if seed%3 == 0 {
				storeWorkloads(t, api)
				storeLongPods(t, api)
			} else {
				storeFields(t, api, seed)
			}
			kubeconfig := file(t, "kubeconfig", fmt.Sprintf(
				"{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: c}}], clusters: [{name: c, cluster: {server: %q}}]}", api.Config.Host))
			recording := filepath.Join(t.TempDir(), "recording")
			bounded(t, "record --once -o", recording, "--kubeconfig", kubeconfig)
			bounded(t, "check --kubeconfig", kubeconfig)
			for i, words := range asked {
				if *everyCommand || (uint64(i)+seed)%2 == 1 { // two tenants cover all commands
					bounded(t, words, "-f", recording)
				}
			}
		})
	}
}

// bounded runs a command as a separate process.
func bounded(t *testing.T, words string, more ...string) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program, append(strings.Fields(words), more...)...)
	command.Env = append(os.Environ(), asCommand+"=1")
	var buf bytes.Buffer
	command.Stderr = &buf
	late := time.AfterFunc(5*mostTimeOfCommand, func() { _ = command.Process.Kill() })
	defer late.Stop()
	err = command.Run()

	state := command.ProcessState
	took, memory := state.UserTime()+state.SystemTime(), state.SysUsage().(*syscall.Rusage).Maxrss<<10
	t.Logf("%s: exit code %d after %v of processor time, %d MiB", words, state.ExitCode(), took, memory>>20)
	if err != nil {
		t.Errorf("%s: %v: %.2000s", words, err, buf.String())
	}
	if took > mostTimeOfCommand || memory > mostMemoryOfCommand {
		t.Errorf("%s: %v of processor time and %d MiB, want no more than %v and %d", words, took, memory>>20, mostTimeOfCommand, mostMemoryOfCommand>>20)
	}
}

// village has nodes with room, a full one, and other tenants' pods, including a pending one.
func village(t *testing.T, api *apitest.Server) {
	for i := range 20 {
		api.Set("nodes", apitest.Object{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": fmt.Sprint("node-", i), "uid": fmt.Sprint("node-", i)},
			"status": map[string]any{"allocatable": map[string]any{"cpu": "8", "memory": "16Gi", "pods": "110"}}})
	}
	for _, namespace := range []string{"other", hostile.Namespace} {
		api.Set("namespaces", apitest.Object{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace}})
	}
	for name, cpu := range map[string]string{"ordinary": "100", "placed": "1"} {
		spec := map[string]any{"schedulerName": "default-scheduler", "containers": []any{
			map[string]any{"name": "c", "image": "i", "resources": map[string]any{"requests": map[string]any{"cpu": cpu}}}}}
		if name == "placed" {
			spec["nodeName"] = "node-1"
		}
		api.Set("pods", apitest.Object{"apiVersion": "v1", "kind": "Pod", "spec": spec,
			"metadata": map[string]any{"name": name, "namespace": "other", "uid": name, "labels": map[string]any{"app": "web"}}})
	}
}

// storeWorkloads stores workloads of impossibly many pods, none of them created: the namespace's
// quota is 0.
func storeWorkloads(t *testing.T, api *apitest.Server) {
	api.Set("resourcequotas", apitest.Object{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": map[string]any{"name": "none", "namespace": hostile.Namespace},
		"spec": map[string]any{"hard": map[string]any{"pods": "0"}}, "status": map[string]any{"hard": map[string]any{"pods": "0"}, "used": map[string]any{"pods": "0"}}})
	template := v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i"}}}}
	selector := &metav1.LabelSelector{MatchLabels: template.Labels}
	meta := func(name string, i int) metav1.ObjectMeta {
		name = fmt.Sprint(name, "-", i)
		return metav1.ObjectMeta{Namespace: hostile.Namespace, Name: name, UID: types.UID(name)}
	}
	const huge = 2_000_000_000
	for i := range 3 {
		ends := template
		ends.Spec.RestartPolicy = v1.RestartPolicyNever
		store(t, api, "Deployment", &appsv1.Deployment{ObjectMeta: meta("huge", i), Spec: appsv1.DeploymentSpec{Replicas: new(int32(huge)), Selector: selector, Template: template}})
		store(t, api, "ReplicaSet", &appsv1.ReplicaSet{ObjectMeta: meta("huge", i), Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(huge)), Selector: selector, Template: template}})
		store(t, api, "StatefulSet", &appsv1.StatefulSet{ObjectMeta: meta("huge", i), Spec: appsv1.StatefulSetSpec{Replicas: new(int32(huge)), Selector: selector, Template: template}})
		store(t, api, "ReplicationController", &v1.ReplicationController{ObjectMeta: meta("huge", i), Spec: v1.ReplicationControllerSpec{Replicas: new(int32(huge)), Selector: template.Labels, Template: &template}})
		store(t, api, "Job", &batchv1.Job{ObjectMeta: meta("huge", i), Spec: batchv1.JobSpec{Parallelism: new(int32(huge)), Completions: new(int32(huge)), Template: ends}})
	}
	for i := range 100 {
		store(t, api, "Deployment", &appsv1.Deployment{ObjectMeta: meta("many", i), Spec: appsv1.DeploymentSpec{Replicas: new(int32(1_000_000)), Selector: selector, Template: template}})
	}
}

// storeLongPods stores pending pods with the maximum number of containers in an object.
func storeLongPods(t *testing.T, api *apitest.Server) {
	for i, pod := range hostile.LongPods("t-") {
		pod.UID = types.UID(pod.Name)
		if pod.Labels = map[string]string{"app": "web"}; i%2 == 1 {
			pod.Spec.NodeName = "node-2"
		}
		store(t, api, "Pod", pod)
	}
}

// storeFields stores objects of several kinds, each with a field of the maximum length.
func storeFields(t *testing.T, api *apitest.Server, seed uint64) {
	g := &hostile.Generator{Rand: rand.New(rand.NewPCG(seed, 2)), Prefix: "t"}
	const kinds = 6
	for range kinds {
		kind := hostile.Kinds[g.IntN(len(hostile.Kinds))]
		paths, copies := hostile.Paths(kind), []int{1, 4, 100}[g.IntN(3)]
		path, full := paths[g.IntN(len(paths))], g.IntN(3) == 0
		g.Known = []int{0, 20, 90}[g.IntN(3)]
		for range copies {
			object := g.Object(kind, path, min(hostile.RoomOfObject, roomOfTenant/kinds/copies), full)
			if pod, is := object.(*v1.Pod); is && g.IntN(2) == 0 {
				pod.Spec.NodeName = fmt.Sprint("node-", g.IntN(20))
			}
			store(t, api, kind.Name, object)
		}
		t.Logf("%d of %s with %s", copies, kind.Name, path)
	}
}

func store(t *testing.T, api *apitest.Server, kind string, object hostile.Object) {
	of := slices.IndexFunc(snapshot.Kinds(), func(k snapshot.Kind) bool { return k.Kind == kind })
	if of < 0 {
		return // no command reads this kind
	}
	k := snapshot.Kinds()[of]
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	stored := apitest.Object{}
	if err := json.Unmarshal(text, &stored); err != nil {
		t.Fatal(err)
	}
	stored["apiVersion"], stored["kind"] = k.GroupVersion.String(), kind
	api.Set(k.Resource, stored)
}
