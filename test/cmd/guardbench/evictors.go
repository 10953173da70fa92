// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubectl/pkg/drain"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// The evictors, also the names of their programs.
const (
	kubectl     = "kubectl"
	karpenter   = "karpenter"
	descheduler = "descheduler"
	library     = "library" // kubectl's drain as a library, as Cluster API and kured use it
)

// ask runs berth kubectl.
func (b *bench) ask(ctx context.Context, args ...string) error {
	_, err := b.Ask(ctx, nil, driver.Berth, "kubectl", append(append([]string{"kubectl"}, args...), "--kubeconfig", b.Kubeconfig)...)
	return err
}

// drainByKubectl drains and uncordons a node, like a script that uses kubectl. It also uncordons a
// node whose drain timed out.
func (b *bench) drainByKubectl(ctx context.Context, node string) error {
	err := b.ask(ctx, "drain", node, "--ignore-daemonsets", "--timeout", b.timeout.String())
	if again := b.ask(ctx, "uncordon", node); err == nil {
		err = again
	}
	return err
}

// The limit of the library's requests is Karpenter's. Without a limit, its reads of all pods that
// it waits for would keep the API server from its other work.
const libraryQPS, libraryBurst = 200, 300

// drainByLibrary does the same as drainByKubectl within this process, which can drain hundreds of
// nodes at the same time.
func (b *bench) drainByLibrary(ctx context.Context, name string) error {
	node, err := b.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	helper := &drain.Helper{Ctx: ctx, Client: b.evictor, IgnoreAllDaemonSets: true, GracePeriodSeconds: -1, Timeout: b.timeout,
		Out: io.Discard, ErrOut: io.Discard}
	if err := drain.RunCordonOrUncordon(helper, node, true); err != nil {
		return err
	}
	err = drain.RunNodeDrain(helper, name)
	if again := drain.RunCordonOrUncordon(helper, node, false); err == nil {
		err = again
	}
	return err
}

// policy makes the descheduler evict the pods that do not tolerate a taint of their node.
const policy = `apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
profiles:
- name: taints
  pluginConfig:
  - name: DefaultEvictor
  - name: RemovePodsViolatingNodeTaints
  plugins:
    deschedule: {enabled: [RemovePodsViolatingNodeTaints]}
`

// startDescheduler starts nodes, and the descheduler, which works every five seconds as kubectl
// drain does.
func (b *bench) startDescheduler(ctx context.Context) (empty emptier, err error) {
	if err := b.startNodes(ctx); err != nil {
		return nil, err
	}
	file := filepath.Join(b.Dir, "policy.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		return nil, err
	}
	err = b.Serve(descheduler, "--kubeconfig", b.Kubeconfig, "--policy-config-file", file, "--descheduling-interval", "5s",
		"--secure-port", "0", "-v", "2")
	return b.emptyByTaint, err
}

// emptyByTaint taints a node, waits until the descheduler has emptied it, and removes the taint.
func (b *bench) emptyByTaint(ctx context.Context, node string) error {
	taint := func(taints ...v1.Taint) error {
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": taints}})
		if err == nil {
			_, err = b.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		return err
	}
	if err := taint(v1.Taint{Key: "example.com/empty", Effect: v1.TaintEffectNoSchedule}); err != nil {
		return err
	}
	err := b.awaitEmpty(ctx, node)
	if again := taint(); err == nil {
		err = again
	}
	return err
}

// pool makes Karpenter create nodes of the same size as the simulated ones, and leave them alone.
const pool = `apiVersion: karpenter.kwok.sh/v1alpha1
kind: KWOKNodeClass
metadata: {name: default}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: Never}
  template:
    spec:
      expireAfter: Never
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      requirements:
      - {key: karpenter.kwok.sh/instance-cpu, operator: In, values: ["16"]}
      - {key: kubernetes.io/os, operator: In, values: [linux]}
`

// startKarpenter starts Karpenter with its kwok provider, and kwok, which serves its nodes. The
// workloads select Karpenter's nodes, the only nodes.
func (b *bench) startKarpenter(ctx context.Context) (empty emptier, err error) {
	poolFile := filepath.Join(b.Dir, "pool.yaml")
	if err := os.WriteFile(poolFile, []byte(pool), 0o600); err != nil {
		return nil, err
	}
	if err := b.ask(ctx, "apply", "--server-side", "-f", b.Path("karpenter-crds")); err != nil {
		return nil, err
	}
	if err := b.ask(ctx, "wait", "--for", "condition=Established", "crd", "--all", "--timeout", "1m"); err != nil {
		return nil, err
	}
	if err := b.ask(ctx, "apply", "-f", poolFile); err != nil {
		return nil, err
	}
	b.NodeSelector = map[string]string{"karpenter.sh/nodepool": "default"}
	for key, value := range map[string]string{"KUBECONFIG": b.Kubeconfig, "SYSTEM_NAMESPACE": metav1.NamespaceSystem,
		"DISABLE_LEADER_ELECTION": "true", "HEALTH_PROBE_PORT": "0", "METRICS_PORT": "0"} {
		if err := os.Setenv(key, value); err != nil {
			return nil, err
		}
	}
	if err := b.Serve("kwok", "--kubeconfig", b.Kubeconfig, "--config", b.Path("kwok-stages.yaml"), "--manage-all-nodes=false",
		"--manage-nodes-with-annotation-selector", "kwok.x-k8s.io/node=fake", "--node-lease-duration-seconds", "40"); err != nil {
		return nil, err
	}
	return b.deleteClaim, b.Serve(karpenter)
}

// deleteClaim deletes the NodeClaim of a node, and waits until Karpenter has removed the node.
func (b *bench) deleteClaim(ctx context.Context, node string) error {
	found, err := b.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, owner := range found.OwnerReferences {
		if owner.Kind == "NodeClaim" {
			if err := b.ask(ctx, "delete", "--wait=false", "nodeclaims.karpenter.sh", owner.Name); err != nil {
				return err
			}
		}
	}
	return b.Until(ctx, node+" to go", b.timeout, func() (string, error) {
		_, err := b.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it is there", err
	})
}
