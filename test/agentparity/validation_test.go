package agentparity

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	upstream "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/capabilities"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/node/agent/validation"
)

func pick[T any](t *rapid.T, name string, from ...T) T { return rapid.SampledFrom(from).Draw(t, name) }

var odd = []string{"", "a", "A", "a.b", "../a", "-a", "a_b", "a/b", "0", "é", "a b"}

// changes that a person, or a generator, makes to a file.
var changes = map[string]func(*rapid.T, *v1.Pod){
	"name":      func(t *rapid.T, p *v1.Pod) { p.Name = pick(t, "name", odd...) },
	"namespace": func(t *rapid.T, p *v1.Pod) { p.Namespace = pick(t, "namespace", odd...) },
	"label": func(t *rapid.T, p *v1.Pod) {
		p.Labels = map[string]string{pick(t, "key", odd...): pick(t, "value", odd...)}
	},
	"container": func(t *rapid.T, p *v1.Pod) { first(p).Name = pick(t, "name", odd...) },
	"second": func(t *rapid.T, p *v1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: pick(t, "name", "c", "d"), Image: pick(t, "image", "", "i")})
	},
	"init": func(t *rapid.T, p *v1.Pod) {
		c := v1.Container{Name: pick(t, "name", "c", "d"), Image: "i"}
		if rapid.Bool().Draw(t, "sidecar") {
			always := pick(t, "policy", v1.ContainerRestartPolicyAlways, "Sometimes")
			c.RestartPolicy = &always
		}
		if rapid.Bool().Draw(t, "probed") {
			c.LivenessProbe = aProbe(t)
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	},
	"none": func(_ *rapid.T, p *v1.Pod) { p.Spec.Containers = nil },
	"pull": func(t *rapid.T, p *v1.Pod) { first(p).ImagePullPolicy = pick(t, "policy", "", v1.PullNever, "never") },
	"message": func(t *rapid.T, p *v1.Pod) {
		first(p).TerminationMessagePolicy = pick(t, "policy", "", v1.TerminationMessageReadFile, "x")
	},
	"restart": func(t *rapid.T, p *v1.Pod) {
		p.Spec.RestartPolicy = pick(t, "policy", "", v1.RestartPolicyNever, "Sometimes")
	},
	"dns":       func(t *rapid.T, p *v1.Pod) { p.Spec.DNSPolicy = pick(t, "policy", "", v1.DNSNone, v1.DNSDefault, "x") },
	"liveness":  func(t *rapid.T, p *v1.Pod) { first(p).LivenessProbe = aProbe(t) },
	"readiness": func(t *rapid.T, p *v1.Pod) { first(p).ReadinessProbe = aProbe(t) },
	"startup":   func(t *rapid.T, p *v1.Pod) { first(p).StartupProbe = aProbe(t) },
	"hook": func(t *rapid.T, p *v1.Pod) {
		hook := &v1.LifecycleHandler{}
		if rapid.Bool().Draw(t, "sleeps") {
			hook.Sleep = &v1.SleepAction{Seconds: pick(t, "seconds", int64(-1), 0, 1, 30, 31)}
		}
		if rapid.Bool().Draw(t, "runs") {
			hook.Exec = &v1.ExecAction{Command: pick(t, "command", nil, []string{"x"})}
		}
		first(p).Lifecycle = &v1.Lifecycle{PreStop: hook}
	},
	"port": func(t *rapid.T, p *v1.Pod) {
		for range rapid.IntRange(1, 2).Draw(t, "ports") {
			first(p).Ports = append(first(p).Ports, v1.ContainerPort{
				Name: pick(t, "name", "", "", "web", "1", "-x", "a-very-long-name-of-a-port"), Protocol: pick(t, "protocol", "", v1.ProtocolUDP, "x"),
				ContainerPort: pick(t, "port", int32(-1), 0, 1, 80, 65535, 65536), HostPort: pick(t, "host port", int32(-1), 0, 0, 80, 65536),
			})
		}
	},
	"host network": func(_ *rapid.T, p *v1.Pod) { p.Spec.HostNetwork = true },
	"grace": func(t *rapid.T, p *v1.Pod) {
		grace := pick(t, "grace", int64(-1), 0, 1)
		p.Spec.TerminationGracePeriodSeconds = &grace
	},
	"deadline": func(t *rapid.T, p *v1.Pod) {
		d := pick(t, "deadline", int64(-1), 0, 1, 1<<31-1, 1<<31)
		p.Spec.ActiveDeadlineSeconds = &d
	},
	"resources": func(t *rapid.T, p *v1.Pod) {
		name := pick(t, "name", v1.ResourceCPU, v1.ResourceMemory, "x.y/z", "z", "a/b/c", v1.ResourceEphemeralStorage)
		amount := func(what string) resource.Quantity { return resource.MustParse(pick(t, what, "-1", "0", "1", "2")) }
		if rapid.Bool().Draw(t, "requests") {
			first(p).Resources.Requests = v1.ResourceList{name: amount("request")}
		}
		if rapid.Bool().Draw(t, "limits") {
			first(p).Resources.Limits = v1.ResourceList{name: amount("limit")}
		}
	},
	"volume": func(t *rapid.T, p *v1.Pod) {
		for range rapid.IntRange(1, 2).Draw(t, "volumes") {
			v := v1.Volume{Name: pick(t, "name", "v", "v", "w", "", "../v")}
			if rapid.Bool().Draw(t, "empty") {
				v.EmptyDir = &v1.EmptyDirVolumeSource{}
			}
			if rapid.Bool().Draw(t, "host") {
				kind := pick(t, "type", v1.HostPathUnset, v1.HostPathFile, "x")
				v.HostPath = &v1.HostPathVolumeSource{Path: pick(t, "path", "", "/a", "/a/../b", "/a..b"), Type: &kind}
			}
			p.Spec.Volumes = append(p.Spec.Volumes, v)
		}
	},
	"mount": func(t *rapid.T, p *v1.Pod) {
		m := v1.VolumeMount{
			Name: pick(t, "name", "v", "w", ""), MountPath: pick(t, "path", "", "/v"),
			SubPath: pick(t, "subPath", "", "", "a", "/a", "../a", "a/..b"), SubPathExpr: pick(t, "subPathExpr", "", "", "$(A)", "../a"),
		}
		if rapid.Bool().Draw(t, "propagates") {
			p := pick(t, "propagation", v1.MountPropagationBidirectional, v1.MountPropagationNone, "x")
			m.MountPropagation = &p
		}
		first(p).VolumeMounts = append(first(p).VolumeMounts, m)
	},
	"variable": func(t *rapid.T, p *v1.Pod) {
		e := v1.EnvVar{Name: pick(t, "name", "", "A", "1", "a=b", "a.b"), Value: pick(t, "value", "", "v")}
		if rapid.Bool().Draw(t, "from") {
			e.ValueFrom = &v1.EnvVarSource{}
			if rapid.Bool().Draw(t, "field") {
				e.ValueFrom.FieldRef = &v1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}
			}
		}
		first(p).Env = append(first(p).Env, e)
	},
	"security": func(t *rapid.T, p *v1.Pod) {
		yes, no, user := true, false, pick(t, "user", int64(-1), 0, 1<<31-1, 1<<31)
		sc := &v1.SecurityContext{RunAsUser: &user}
		if rapid.Bool().Draw(t, "privileged") {
			sc.Privileged = &yes
		}
		if rapid.Bool().Draw(t, "no escalation") {
			sc.AllowPrivilegeEscalation = &no
		}
		if rapid.Bool().Draw(t, "seccomp") {
			sc.SeccompProfile = &v1.SeccompProfile{Type: pick(t, "type", v1.SeccompProfileTypeLocalhost, v1.SeccompProfileTypeRuntimeDefault, "x")}
			if rapid.Bool().Draw(t, "profile") {
				profile := pick(t, "path", "", "p.json")
				sc.SeccompProfile.LocalhostProfile = &profile
			}
		}
		first(p).SecurityContext = sc
	},
	"toleration": func(t *rapid.T, p *v1.Pod) {
		p.Spec.Tolerations = []v1.Toleration{{
			Key: pick(t, "key", odd...), Operator: pick(t, "operator", "", v1.TolerationOpExists, v1.TolerationOpEqual, "x"),
			Value: pick(t, "value", "", "v", "é"), Effect: pick(t, "effect", "", v1.TaintEffectNoExecute, "x"),
		}}
	},
	"hostname": func(t *rapid.T, p *v1.Pod) { p.Spec.Hostname = pick(t, "hostname", odd...) },
	"selector": func(t *rapid.T, p *v1.Pod) { p.Spec.NodeSelector = map[string]string{pick(t, "key", odd...): "v"} },
	"class":    func(t *rapid.T, p *v1.Pod) { c := pick(t, "class", odd...); p.Spec.RuntimeClassName = &c },
}

func first(p *v1.Pod) *v1.Container {
	if len(p.Spec.Containers) == 0 {
		p.Spec.Containers = []v1.Container{{Name: "c", Image: "i"}}
	}
	return &p.Spec.Containers[0]
}

func aProbe(t *rapid.T) *v1.Probe {
	p := &v1.Probe{}
	number := func(what string) int32 { return pick(t, what, int32(-1), 0, 0, 1, 1, 2) }
	p.PeriodSeconds, p.TimeoutSeconds, p.SuccessThreshold, p.FailureThreshold, p.InitialDelaySeconds =
		number("period"), number("timeout"), number("successes"), number("failures"), number("delay")
	port := pick(t, "port", intstr.FromInt32(80), intstr.FromInt32(0), intstr.FromString("web"), intstr.FromString("-"))
	if rapid.Bool().Draw(t, "http") {
		p.HTTPGet = &v1.HTTPGetAction{Port: port, Path: pick(t, "path", "", "/"), Scheme: pick(t, "scheme", "", v1.URISchemeHTTPS, "x")}
	}
	if rapid.Bool().Draw(t, "tcp") {
		p.TCPSocket = &v1.TCPSocketAction{Port: port}
	}
	if rapid.Bool().Draw(t, "graceful") {
		grace := pick(t, "grace", int64(-1), 0, 1)
		p.TerminationGracePeriodSeconds = &grace
	}
	return p
}

// What the kubelet does not take from a file is not taken here, and what it takes is.
func TestStaticPodsAreValidatedAlike(t *testing.T) {
	capabilities.Setup(true, 0) // the kubelet allows privileged containers
	rapid.Check(t, func(t *rapid.T) {
		pod := &v1.Pod{}
		pod.Name, pod.Namespace, pod.UID = "p", "default", types.UID("0123")
		first(pod)
		names := make([]string, 0, len(changes))
		for name := range changes {
			names = append(names, name)
		}
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(slices.Sorted(slices.Values(names))), 0, 2, rapid.ID[string]).Draw(t, "changes") {
			changes[name](t, pod)
		}
		theirs := pod.DeepCopy()
		admission.Default(pod)
		corev1.SetObjectDefaults_Pod(theirs)
		internal := &core.Pod{}
		if err := corev1.Convert_v1_Pod_To_core_Pod(theirs, internal, nil); err != nil {
			t.Fatal(err)
		}
		options := podutil.GetValidationOptionsFromPodSpecAndMeta(&internal.Spec, nil, &internal.ObjectMeta, nil)
		want, got := upstream.ValidatePodCreate(internal, options), validation.Pod(pod)
		if (len(want) > 0) != (len(got) > 0) {
			t.Fatalf("the kubelet says %v, the agent %v", want.ToAggregate(), got.ToAggregate())
		}
	})
}
