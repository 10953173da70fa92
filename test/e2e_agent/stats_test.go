package e2eagent

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

const (
	held    = 40 // MiB of memory that the pod holds
	written = 9  // MiB that it has on an emptyDir
)

// What the node tells of a pod with overhead, in the three places where it is read: /stats/summary,
// /metrics/resource, /metrics.
func TestNumbersOfAPod(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, `{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: numbers}, handler: kata-fc, overhead: {podFixed: {memory: 60Mi, cpu: 250m}}}`)
	t.Cleanup(func() { _, _ = n.kubectl("delete", "runtimeclass", "numbers") })
	n.run(t, ns, load{name: "holder", runtimeClass: "runtimeClassName: numbers", requests: "{memory: 20Mi, cpu: 10m}", memory: held, disk: written, processes: 3})
	pod := n.pod(t, ns, "holder")
	raw := func(path string) string { return n.do(t, "get", "--raw", "/api/v1/nodes/"+n.name+"/proxy"+path) }

	eventually(t, "summary", func() error {
		var summary stats.Summary
		if err := json.Unmarshal([]byte(raw("/stats/summary")), &summary); err != nil {
			return err
		}
		for _, p := range summary.Pods {
			if p.PodRef.UID == string(pod.UID) {
				return checkNumbers(p)
			}
		}
		return fmt.Errorf("the pod is not among %d", len(summary.Pods))
	})
	eventually(t, "resource metrics", func() error {
		text := raw("/metrics/resource")
		for name, between := range map[string][2]float64{
			"container_memory_working_set_bytes": {held << 20, (held + 15) << 20}, "pod_memory_working_set_bytes": {held << 20, (held + 20) << 20},
			"container_cpu_usage_seconds_total": {0.001, 60}, "pod_cpu_usage_seconds_total": {0.001, 60},
		} {
			found := regexp.MustCompile(`(?m)^` + name + `\{.*namespace="` + ns + `",pod="holder"\} (\S+) \d+$`).FindStringSubmatch(text)
			if found == nil {
				return fmt.Errorf("no %s of the pod", name)
			}
			if value, err := strconv.ParseFloat(found[1], 64); err != nil || value < between[0] || value > between[1] {
				return fmt.Errorf("%s is %s, want from %g to %g", name, found[1], between[0], between[1])
			}
		}
		return nil
	})
	text := raw("/metrics")
	for _, want := range []string{
		fmt.Sprintf(`kube_pod_overhead_cpu_cores{namespace="%s",pod="holder",uid="%s"} 0.25`, ns, pod.UID),
		fmt.Sprintf(`kube_pod_overhead_memory_bytes{namespace="%s",pod="holder",uid="%s"} 6.291456e+07`, ns, pod.UID),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
}

func checkNumbers(p stats.PodStats) error {
	if len(p.Containers) != 1 || p.Containers[0].Name != "app" || len(p.VolumeStats) != 1 {
		return fmt.Errorf("containers %v, volumes %v", p.Containers, p.VolumeStats)
	}
	app := p.Containers[0]
	for what, number := range map[string]struct {
		got         *uint64
		least, most uint64
	}{
		"memory of the container": {app.Memory.WorkingSetBytes, held << 20, (held + 15) << 20},
		"memory of the pod":       {p.Memory.WorkingSetBytes, held << 20, (held + 20) << 20},
		"CPU time":                {p.CPU.UsageCoreNanoSeconds, 1_000_000, 60_000_000_000},
		"volume":                  {p.VolumeStats[0].UsedBytes, written << 20, (written + 1) << 20},
		"disk":                    {p.EphemeralStorage.UsedBytes, written << 20, (written + 2) << 20},
		"tasks":                   {p.ProcessStats.ProcessCount, 6, 10}, // sandbox, shell, its three, dd and its reader; a probe comes and goes
	} {
		if number.got == nil || *number.got < number.least || *number.got > number.most {
			return fmt.Errorf("%s: %v, want from %d to %d", what, number.got, number.least, number.most)
		}
	}
	return nil
}
