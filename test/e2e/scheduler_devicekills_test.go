// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/test/internal/nightly"
)

var (
	deviceNodes = flag.Int("device-nodes", 12, "nodes of TestDevicePreemptionSurvivesKills, with two devices each")
	deviceKills = flag.Int("device-kills", 3, "how often it kills the scheduler")
)

// TestDevicePreemptionSurvivesKills fills all devices with pods of priority 0, and then creates
// pods of a higher priority that need half of the devices, while the scheduler is killed again and
// again. It verifies that all important pods get a device of their own, and that as many pods leave
// for them.
func TestDevicePreemptionSurvivesKills(t *testing.T) {
	nightly.Only(t)
	const scheduler = "device-kills"
	simulate(t, "dk-", "--count", fmt.Sprint(*deviceNodes), "--label", "pool=dk")
	var slices strings.Builder
	for _, name := range strings.Fields(kubectl(t, "get", "nodes", "-l", "pool=dk", "-o", "name")) {
		name = strings.TrimPrefix(name, "node/")
		fmt.Fprintf(&slices, `---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: %s-dk, labels: {pool: dk}}
spec:
  driver: dk.example.com
  nodeName: %s
  pool: {name: %s, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0}, {name: gpu-1}]
`, name, name, name)
	}
	apply(t, `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: device-important}
value: 1000
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: dk}
spec: {selectors: [{cel: {expression: 'device.driver == "dk.example.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: dk}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: dk}}]}}}
`+slices.String())
	t.Cleanup(func() {
		kubectl(t, "delete", "pod", "-l", "pool=dk", "--now")
		kubectl(t, "delete", "resourceslice", "-l", "pool=dk")
		kubectl(t, "delete", "resourceclaimtemplate/dk", "deviceclass/dk", "priorityclass/device-important")
	})
	config := filepath.Join(t.TempDir(), "scheduler.yaml")
	if err := os.WriteFile(config, []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"+
		"leaderElection: {leaderElect: false}\nprofiles: [{schedulerName: "+scheduler+"}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func() *replica {
		return shared.schedule(t, "--config", config, "--feature-gates=BerthDevicePreemption=true")
	}
	pods, claims := shared.client.CoreV1().Pods("default"), shared.client.ResourceV1().ResourceClaims("default")
	create := func(name, class string) {
		if _, err := pods.Create(background(), &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": "dk", "class": class},
				Annotations: map[string]string{"berth.dev/terminate-after": "1h"}}, // victims end after their grace period
			Spec: v1.PodSpec{
				SchedulerName: scheduler, PriorityClassName: class, TerminationGracePeriodSeconds: new(int64(6)),
				ResourceClaims: []v1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("dk")}},
				Containers: []v1.Container{{Name: "c", Image: "nginx", Resources: v1.ResourceRequirements{
					Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("10m")}, Claims: []v1.ResourceClaim{{Name: "gpu"}}}}},
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	devices, important := 2**deviceNodes, *deviceNodes
	r := start()
	for i := range devices {
		create(fmt.Sprintf("dk-low-%d", i), "")
	}
	allPlaced(t, shared.client, scheduler, devices)

	created := 0
	for kill := range *deviceKills {
		before := created
		for ; created < important*(kill+1)/(*deviceKills+1); created++ {
			create(fmt.Sprintf("dk-high-%d", created), "device-important")
		}
		awaitNominated(t, created-rand.N(max(created-before, 1)))
		_ = r.cmd.Process.Kill()
		<-r.ended
		r = start()
	}
	for ; created < important; created++ {
		create(fmt.Sprintf("dk-high-%d", created), "device-important")
	}
	allPlaced(t, shared.client, scheduler, devices)

	low, err := pods.List(background(), metav1.ListOptions{LabelSelector: "pool=dk,class="})
	if err != nil {
		t.Fatal(err)
	}
	stayed := 0
	for _, p := range low.Items {
		if p.DeletionTimestamp == nil {
			stayed++
		}
	}
	if stayed != devices-important {
		t.Errorf("%d pods left for %d devices", devices-stayed, important)
	}
	list, err := claims.List(background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	holders := map[string]string{}
	for _, claim := range list.Items {
		if claim.Status.Allocation == nil || len(claim.OwnerReferences) == 0 || !strings.HasPrefix(claim.OwnerReferences[0].Name, "dk-") {
			continue
		}
		for _, device := range claim.Status.Allocation.Devices.Results {
			key := device.Pool + "/" + device.Device
			if other := holders[key]; other != "" {
				t.Errorf("%s is allocated to the claims %s and %s", key, other, claim.Name)
			}
			holders[key] = claim.Name
		}
	}
	if len(holders) != devices {
		t.Errorf("%d devices are allocated, want %d", len(holders), devices)
	}
}

// awaitNominated waits for the moment at which so many important pods have a node or a nomination.
func awaitNominated(t *testing.T, count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(background(), patience)
	defer cancel()
	watching, err := shared.client.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{LabelSelector: "class=device-important"})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	nominated := map[types.UID]bool{}
	for len(nominated) < count {
		event, ok := <-watching.ResultChan()
		if !ok {
			t.Fatalf("%d of %d pods were nominated within %v", len(nominated), count, patience)
		}
		if p, is := event.Object.(*v1.Pod); is && (p.Spec.NodeName != "" || p.Status.NominatedNodeName != "") {
			nominated[p.UID] = true
		}
	}
}
