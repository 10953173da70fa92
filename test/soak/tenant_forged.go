// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// forgedNames is the number of different names. It is small, so that names recur within seconds.
const forgedNames = 10

// forgeLease announces a scheduler whose only profile packs all pods onto a node of the tenant's
// choice.
func (h *hostile) forgeLease(ctx context.Context) error {
	holder := oneOf(h, "", "forged")
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("a-", h.rng.IntN(forgedNames)), Annotations: map[string]string{
			"berth.dev/scheduler-configuration": fmt.Sprintf(`{"kind":"SchedulerConfigurationInUse","holder":%q,"profiles":[{"schedulerName":"default-scheduler",`+
				`"pluginConfig":[{"name":"NodeAffinity","args":{"addedAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":`+
				`[{"matchFields":[{"key":"metadata.name","operator":"In","values":["node-1"]}]}]}}}}]}]}`, holder),
			"berth.dev/room": `[{"namespace":"witness","name":"shop-0","uid":"shop-0","owner":"shop","node":"node-1"}]`,
		}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &metav1.MicroTime{Time: time.Now().Add(
			oneOf(h, -time.Hour, 0, time.Hour))}, LeaseDurationSeconds: pointerTo(oneOf[int32](h, 1, 15, 1<<31-1))},
	}
	leases := h.client.CoordinationV1().Leases(tenantNamespace)
	_, err := leases.Create(ctx, lease, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return leases.Delete(ctx, lease.Name, metav1.DeleteOptions{})
	}
	return err
}

// forgeSurge creates a workload with the label of an abandoned surge, owned by an object whose name
// is a relative path to another namespace's Deployment.
func (h *hostile) forgeSurge(ctx context.Context) error {
	name, app := fmt.Sprint("surged-", h.rng.IntN(forgedNames)), map[string]string{"app": "surged"}
	pod := types.UID("x")
	if p, err := h.pickPod(ctx); err == nil && p != nil && h.withChance(50) {
		pod = p.UID
	}
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"berth.dev/surge": fmt.Sprintf("%d_%s_%d", oneOf(h, 0, 1, 1<<31-1), pod, oneOf(h, 1, time.Now().Unix(), 1<<40)),
		}, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: oneOf(h, "apps/v1", "v1", "../../v1"), Kind: oneOf(h, "Deployment", "ConfigMap", "Deployments/shop"),
			Name: oneOf(h, "../../witness/deployments/shop", "shop", ".."), UID: "1", Controller: pointerTo(true),
		}}},
		Spec: appsv1.ReplicaSetSpec{Replicas: pointerTo(oneOf[int32](h, 0, 1, 3)), Selector: &metav1.LabelSelector{MatchLabels: app},
			Template: podTemplate(app, 10, "tenant-low", nil)},
	}
	sets := h.client.AppsV1().ReplicaSets(tenantNamespace)
	_, err := sets.Create(ctx, set, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return sets.Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: pointerTo(metav1.DeletePropagationBackground)})
	}
	return err
}

// forgePod creates a pod, under a recurring name, whose annotations and owner imitate a pod being
// moved.
func (h *hostile) forgePod(ctx context.Context) error {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("forged-", h.rng.IntN(forgedNames)), Labels: map[string]string{"app": "witness"},
			Annotations: map[string]string{
				"berth.dev/deletion-cost-before":                 oneOf(h, "", "x", "-2147483648", strings.Repeat("9", 1000)),
				"controller.kubernetes.io/pod-deletion-cost":     oneOf(h, "2147483647", "-2147483648"),
				"berth.dev/rebalance":                            oneOf(h, "never", "always"),
				"cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "../../witness/replicasets/shop",
				UID: "1", Controller: pointerTo(true)}}},
		Spec: podTemplate(nil, 10, "tenant-low", nil).Spec,
	}
	if h.withChance(30) {
		pod.Finalizers = []string{"example.com/never"}
	}
	pods := h.client.CoreV1().Pods(tenantNamespace)
	_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: pointerTo(int64(0))})
	}
	return err
}

// hugeClaim creates a claim whose selector computes with quantities of millions of digits.
func (h *hostile) hugeClaim(ctx context.Context) error {
	huge := oneOf(h, `quantity("1e60000000").isGreaterThan(quantity("1"))`, `quantity("1e-60000000").isLessThan(quantity("1"))`,
		`device.driver == "example.com" && quantity("1e"+"60000000").compareTo(quantity("1")) > 0`,
		`quantity("1e30000000").add(quantity("1e-30000000")).sign() > 0`)
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("claim-", h.rng.IntN(30))},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "r",
			Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "tenant-device", AllocationMode: resourcev1.DeviceAllocationModeExactCount,
				Count: 1, Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: huge}}}}}}}}}
	_, err := h.client.ResourceV1().ResourceClaims(tenantNamespace).Create(ctx, claim, metav1.CreateOptions{})
	return err
}

// The promises to the operator.
const (
	commandsEnd   = "the operator's commands end within a minute, without a panic, whatever the tenant stores"
	scaleIsOthers = "no workload of another namespace is scaled"
)

// commandLimit limits the time of each of the operator's commands.
const commandLimit = time.Minute

// runOperator runs Berth's commands until the context ends, and verifies that the Deployment of
// another namespace keeps its scale.
func (t *tenancy) runOperator(ctx context.Context, kubeconfig string) {
	commands := [][]string{
		{"pending", "-A"}, {"check"}, {"explain", "deployment/shop", "-n", probeNamespace}, {"rebalance", "heal"},
		{"drain", "node-2", "--timeout", "5s"}, {"uncordon", "node-2"},
		{"drain", "node-3", "--surge", "--timeout", "5s"}, {"uncordon", "node-3"},
	}
	for i := 0; ; i++ {
		if !sleepFor(ctx, time.Second) {
			return
		}
		args := commands[i%len(commands)]
		began := time.Now()
		out, ended := t.runCommand(append(args, "--kubeconfig", kubeconfig))
		t.actions.addOne("operator: " + strings.Join(args, " "))
		t.observer.checks.addOne(commandsEnd)
		if took := time.Since(began); !ended || strings.Contains(out, "goroutine ") {
			t.addViolation(commandsEnd, fmt.Sprintf("berth %s: ended: %t, after %v: %.20000s", strings.Join(args, " "), ended, took, out), "operator")
		}
		shop, err := t.client.AppsV1().Deployments(probeNamespace).Get(ctx, "shop", metav1.GetOptions{})
		if err != nil {
			continue
		}
		t.observer.checks.addOne(scaleIsOthers)
		// A surge by the operator's drain adds one replica, and labels the workload while it lasts.
		if n := *shop.Spec.Replicas; n != shopReplicas && shop.Labels["berth.dev/surge"] == "" {
			t.addViolation(scaleIsOthers, fmt.Sprintf("deployment witness/shop has %d replicas", n), "operator")
		}
	}
}

// shopReplicas is the scale of another namespace's Deployment.
const shopReplicas = 2

func shop() *appsv1.Deployment {
	app := map[string]string{"app": "shop"}
	template := podTemplate(app, 10, "", nil)
	one := intstr.FromInt32(1)
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: appsv1.DeploymentSpec{Replicas: pointerTo(int32(shopReplicas)),
		Selector: &metav1.LabelSelector{MatchLabels: app}, Template: template,
		Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &one}}}}
}

// runCommand runs one of Berth's commands to its end. At commandLimit, SIGQUIT ends it, so that the
// output shows what it was doing.
func (t *tenancy) runCommand(args []string) (out string, ended bool) {
	limited, cancel := context.WithTimeout(context.Background(), commandLimit)
	defer cancel()
	command := exec.CommandContext(limited, filepath.Join(t.Bin, "berth"), args...)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGQUIT) }
	command.WaitDelay = 10 * time.Second
	text, _ := command.CombinedOutput() // an error exit is acceptable
	return string(text), limited.Err() == nil
}
