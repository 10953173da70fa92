package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/admission"
)

// TestReadCases runs testdata/read*.txt: manifests in; the objects of each
// kind, warnings, what was ignored, or the errors out. The line numbers are
// those of the manifest, from 1.
func TestReadCases(t *testing.T) {
	files, err := filepath.Glob("testdata/read*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			path := filepath.Join(t.TempDir(), "in.yaml")
			if err := os.WriteFile(path, []byte(d.Input+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			set, err := Read([]string{path}, nil, Options{Lenient: d.HasArg("lenient")})
			if err != nil {
				return strings.ReplaceAll(err.Error(), path, "in.yaml") + "\n"
			}
			return strings.ReplaceAll(summary(set), path, "in.yaml")
		})
	}
}

func summary(s *Set) string {
	var out strings.Builder
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		list := v.Field(i)
		if !v.Type().Field(i).IsExported() || list.Kind() != reflect.Slice || list.Len() == 0 || list.Type().Elem().Kind() != reflect.Pointer {
			continue
		}
		fmt.Fprintf(&out, "%s:", v.Type().Field(i).Name)
		for j := range list.Len() {
			meta := list.Index(j).Elem().FieldByName("ObjectMeta")
			name := meta.FieldByName("Name").String()
			if namespace := meta.FieldByName("Namespace").String(); namespace != "" {
				name = namespace + "/" + name
			}
			out.WriteString(" " + name)
		}
		out.WriteByte('\n')
	}
	for _, kind := range slices.Sorted(maps.Keys(s.Ignored)) {
		fmt.Fprintf(&out, "ignored: %d %s\n", s.Ignored[kind], kind)
	}
	for _, warning := range s.Warnings {
		fmt.Fprintf(&out, "warning: %s\n", warning)
	}
	return out.String()
}

// cluster prints nodes and pods as `kubectl get -o yaml` does.
func cluster(nodes, pods int) []byte {
	var out bytes.Buffer
	out.WriteString("apiVersion: v1\nitems:\n")
	for i := range nodes {
		fmt.Fprintf(&out, nodeYAML, i, i, i%5, i)
	}
	for i := range pods {
		fmt.Fprintf(&out, podYAML, i%500, i, i, i%max(nodes, 1), i%200, i%250)
	}
	out.WriteString("kind: List\nmetadata:\n  resourceVersion: \"\"\n")
	return out.Bytes()
}

const nodeYAML = `- apiVersion: v1
  kind: Node
  metadata:
    annotations:
      csi.volume.kubernetes.io/nodeid: '{"ebs.csi.aws.com":"i-0123456789"}'
      node.alpha.kubernetes.io/ttl: "0"
    creationTimestamp: "2026-10-02T08:11:12Z"
    labels:
      beta.kubernetes.io/arch: amd64
      kubernetes.io/arch: amd64
      kubernetes.io/hostname: node-%d
      kubernetes.io/os: linux
    name: node-%d
    resourceVersion: "123456"
    uid: 1b1ec2c0-0000-4000-8000-000000000001
  spec:
    podCIDR: 10.1.%d.0/24
    providerID: aws:///eu-central-1a/i-%d
    taints:
    - effect: NoSchedule
      key: dedicated
      value: batch
  status:
    addresses:
    - address: 10.0.0.1
      type: InternalIP
    allocatable:
      cpu: 15890m
      ephemeral-storage: "95551679124"
      hugepages-1Gi: "0"
      memory: 62116536Ki
      pods: "110"
    capacity:
      cpu: "16"
      ephemeral-storage: 104845292Ki
      hugepages-1Gi: "0"
      memory: 65133240Ki
      pods: "110"
    conditions:
    - lastHeartbeatTime: "2026-11-02T08:11:12Z"
      lastTransitionTime: "2026-10-02T08:11:12Z"
      message: kubelet has sufficient memory available
      reason: KubeletHasSufficientMemory
      status: "False"
      type: MemoryPressure
    - lastHeartbeatTime: "2026-11-02T08:11:12Z"
      lastTransitionTime: "2026-10-02T08:11:12Z"
      message: kubelet is posting ready status
      reason: KubeletReady
      status: "True"
      type: Ready
    images:
    - names:
      - registry.example.com/team/app@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
      - registry.example.com/team/app:v1.2.3
      sizeBytes: 123456789
    nodeInfo:
      architecture: amd64
      bootID: 3b3f0000-0000-4000-8000-000000000001
      containerRuntimeVersion: containerd://1.7.2
      kernelVersion: 6.1.0
      kubeletVersion: v1.36.3
      machineID: ec20000000000000000000000000000
      operatingSystem: linux
      osImage: Debian GNU/Linux 12 (bookworm)
      systemUUID: ec200000-0000-4000-8000-000000000001
`

const podYAML = `- apiVersion: v1
  kind: Pod
  metadata:
    creationTimestamp: "2026-11-02T08:11:12Z"
    generateName: web-7d4b9c6f5-
    labels:
      app: web-%d
      pod-template-hash: 7d4b9c6f5
    name: web-7d4b9c6f5-%06d
    namespace: default
    ownerReferences:
    - apiVersion: apps/v1
      blockOwnerDeletion: true
      controller: true
      kind: ReplicaSet
      name: web-7d4b9c6f5
      uid: 0a0a0a0a-0000-4000-8000-000000000001
    resourceVersion: "1234567"
    uid: 2c2c2c2c-0000-4000-8000-%012d
  spec:
    containers:
    - image: registry.example.com/team/app:v1.2.3
      imagePullPolicy: IfNotPresent
      name: app
      ports:
      - containerPort: 8080
        protocol: TCP
      resources:
        limits:
          memory: 512Mi
        requests:
          cpu: 100m
          memory: 256Mi
      terminationMessagePath: /dev/termination-log
      terminationMessagePolicy: File
      volumeMounts:
      - mountPath: /var/run/secrets/kubernetes.io/serviceaccount
        name: kube-api-access-x
        readOnly: true
    dnsPolicy: ClusterFirst
    enableServiceLinks: true
    nodeName: node-%d
    preemptionPolicy: PreemptLowerPriority
    priority: 0
    restartPolicy: Always
    schedulerName: default-scheduler
    securityContext: {}
    serviceAccount: default
    serviceAccountName: default
    terminationGracePeriodSeconds: 30
    tolerations:
    - effect: NoExecute
      key: node.kubernetes.io/not-ready
      operator: Exists
      tolerationSeconds: 300
    - effect: NoExecute
      key: node.kubernetes.io/unreachable
      operator: Exists
      tolerationSeconds: 300
    volumes:
    - name: kube-api-access-x
      projected:
        defaultMode: 420
        sources:
        - serviceAccountToken:
            expirationSeconds: 3607
            path: token
        - configMap:
            items:
            - key: ca.crt
              path: ca.crt
            name: kube-root-ca.crt
  status:
    conditions:
    - lastProbeTime: null
      lastTransitionTime: "2026-11-02T08:11:20Z"
      status: "True"
      type: Ready
    - lastProbeTime: null
      lastTransitionTime: "2026-11-02T08:11:12Z"
      status: "True"
      type: PodScheduled
    containerStatuses:
    - containerID: containerd://0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
      image: registry.example.com/team/app:v1.2.3
      imageID: registry.example.com/team/app@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
      name: app
      ready: true
      restartCount: 0
      started: true
      state:
        running:
          startedAt: "2026-11-02T08:11:19Z"
    hostIP: 10.0.0.1
    phase: Running
    podIP: 10.1.%d.%d
    qosClass: Burstable
    startTime: "2026-11-02T08:11:12Z"
`

// BenchmarkRead reads clusters as kubectl prints them: a tenth of what has to
// go in well under 10 seconds, and all of it.
func BenchmarkRead(b *testing.B) {
	for _, size := range []struct{ nodes, pods int }{{1000, 10_000}, {10_000, 100_000}} {
		b.Run(fmt.Sprintf("nodes=%d,pods=%d", size.nodes, size.pods), func(b *testing.B) {
			data := cluster(size.nodes, size.pods)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				set, err := Read([]string{"-"}, bytes.NewReader(data), Options{})
				if err != nil {
					b.Fatal(err)
				}
				if len(set.Nodes) != size.nodes || len(set.Pods) != size.pods {
					b.Fatal(len(set.Nodes), len(set.Pods))
				}
			}
		})
	}
}

// BenchmarkReadOtherwise reads the same pods in the forms that people and
// other programs write: JSON, one document each, flow style, wrapped lines.
func BenchmarkReadOtherwise(b *testing.B) {
	block := cluster(0, 2000)
	var list struct{ Items []map[string]any }
	if err := yaml.Unmarshal(block, &list); err != nil {
		b.Fatal(err)
	}
	forms := map[string]func() []byte{
		"json": func() []byte {
			data, _ := json.MarshalIndent(map[string]any{"apiVersion": "v1", "kind": "List", "items": list.Items}, "", "    ")
			return data
		},
		"documents": func() (data []byte) {
			for _, item := range list.Items {
				text, _ := yaml.Marshal(item)
				data = append(append(data, "---\n"...), text...)
			}
			return data
		},
		"flow": func() (data []byte) {
			for _, item := range list.Items {
				text, _ := json.Marshal(item)
				data = append(append(append(data, "--- # flow\n"...), text...), '\n')
			}
			return data
		},
		"library": func() []byte {
			return bytes.ReplaceAll(block, []byte("    dnsPolicy: ClusterFirst\n"), []byte("    dnsPolicy: \"Cluster\\\n      First\"\n"))
		},
	}
	for _, name := range slices.Sorted(maps.Keys(forms)) {
		b.Run(name, func(b *testing.B) {
			data := forms[name]()
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				set, err := Read([]string{"-"}, bytes.NewReader(data), Options{Lenient: true})
				if err != nil || len(set.Pods) != 2000 {
					b.Fatal(err, len(set.Pods))
				}
			}
		})
	}
}

// What kubectl prints is read as kubectl itself would read it.
func TestReadsAsTheLibraryDoes(t *testing.T) {
	data := cluster(20, 200)
	set, err := Read([]string{"-"}, bytes.NewReader(data), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []map[string]any }
	if err := yaml.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	for i, item := range list.Items[20:] {
		text, err := yaml.Marshal(item)
		if err != nil {
			t.Fatal(err)
		}
		var want v1.Pod
		if err := yaml.UnmarshalStrict(text, &want); err != nil {
			t.Fatal(err)
		}
		admission.Default(&want)
		if !apiequality.Semantic.DeepEqual(&want, set.Pods[i]) {
			t.Fatalf("want\n%+v\ngot\n%+v", want, set.Pods[i])
		}
	}
}
