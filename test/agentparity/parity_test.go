package agentparity

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/kubelet/envvars"
	"k8s.io/kubernetes/pkg/kubelet/network/dns"
	kubeletenv "k8s.io/kubernetes/pkg/kubelet/util/env"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/node/agent/env"
)

// word of letters that mean something to somebody.
func word(letters string, most int) *rapid.Generator[string] {
	return rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]rune(letters)), 0, most), func(r []rune) string { return string(r) })
}

func resolve(t *rapid.T, pod *v1.Pod, sources env.Sources) env.Process {
	process, err := env.Resolve(pod, &pod.Spec.Containers[0], sources)
	if err != nil {
		t.Fatal(err)
	}
	return process
}

func TestExpansion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.MapOfN(rapid.SampledFrom([]string{"A", "B", "AB"}), word("$()AB", 5), 0, 3).Draw(t, "values")
		input := word("$$$(()AB é", 20).Draw(t, "input")
		c := v1.Container{Args: []string{input}}
		for _, name := range slices.Sorted(maps.Keys(values)) {
			// As they are: doubled, since values of variables are expanded, too.
			c.Env = append(c.Env, v1.EnvVar{Name: name, Value: strings.ReplaceAll(values[name], "$", "$$")})
		}
		got := resolve(t, &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{c}}}, env.Sources{}).Args[0]
		if want := expansion.Expand(input, expansion.MappingFuncFor(values)); got != want {
			t.Fatalf("%q became %q, the kubelet's is %q", input, got, want)
		}
	})
}

func TestServiceVariables(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		service := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "my-" + word("ab-0", 5).Draw(t, "name")}}
		service.Spec.ClusterIP = rapid.SampledFrom([]string{"", "None", "10.0.0.1", "fd00::1"}).Draw(t, "ip")
		for i := range rapid.IntRange(1, 3).Draw(t, "ports") {
			service.Spec.Ports = append(service.Spec.Ports, v1.ServicePort{
				Name: rapid.SampledFrom([]string{"", "web", "my-port"}).Draw(t, "port's name"), Port: int32(80 + i),
				Protocol: rapid.SampledFrom([]v1.Protocol{"", v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP}).Draw(t, "protocol"),
			})
		}
		want, got := map[string]string{}, map[string]string{}
		for _, variable := range envvars.FromServices([]*v1.Service{service}) {
			want[variable.Name] = variable.Value
		}
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: v1.PodSpec{Containers: []v1.Container{{}}}}
		sources := env.Sources{Services: func() ([]*v1.Service, error) { return []*v1.Service{service}, nil }}
		for _, variable := range resolve(t, pod, sources).Env {
			got[variable.Name] = variable.Value
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestVariablesFromFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	rapid.Check(t, func(rt *rapid.T) {
		content := word("AAB=='''  \t\n\n#xé", 30).Draw(rt, "content")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			rt.Fatal(err)
		}
		want, err := kubeletenv.ParseEnv(path, "A")
		wanted := fmt.Sprint(want, err != nil)
		c := v1.Container{Env: []v1.EnvVar{{Name: "OUT", ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{VolumeName: "v", Path: "file", Key: "A", Optional: new(true)}}}}}
		pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{c}}}
		process, err := env.Resolve(pod, &pod.Spec.Containers[0], env.Sources{VolumeFile: func(string, string) ([]byte, error) { return os.ReadFile(path) }})
		value := ""
		if len(process.Env) > 0 {
			value = process.Env[0].Value
		}
		if got := fmt.Sprint(value, err != nil); got != wanted {
			rt.Fatalf("%q: got %s, the kubelet's is %s", content, got, wanted)
		}
	})
}

func TestNameResolution(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	rapid.Check(t, func(rt *rapid.T) {
		domain := rapid.SampledFrom([]string{"example.org", "example.org.", ".", "a.b", "svc.cluster.local", strings.Repeat("long.", 60) + "org"})
		var file strings.Builder
		for range rapid.IntRange(0, 5).Draw(rt, "lines") {
			switch rapid.IntRange(0, 3).Draw(rt, "line") {
			case 0:
				fmt.Fprintf(&file, "nameserver 192.0.2.%d\n", rapid.IntRange(1, 5).Draw(rt, "server"))
			case 1:
				fmt.Fprintf(&file, "search %s\n", strings.Join(rapid.SliceOfN(domain, 1, 40).Draw(rt, "search"), " "))
			case 2:
				fmt.Fprintf(&file, "options %s\n", strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"ndots:1", "ndots:2", "edns0", "timeout:1"}), 1, 4).Draw(rt, "options"), " "))
			case 3:
				file.WriteString("  # a comment\n")
			}
		}
		if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
			rt.Fatal(err)
		}
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}}
		pod.Spec.DNSPolicy = rapid.SampledFrom([]v1.DNSPolicy{v1.DNSDefault, v1.DNSNone, v1.DNSClusterFirst, v1.DNSClusterFirstWithHostNet}).Draw(rt, "policy")
		pod.Spec.HostNetwork = rapid.Bool().Draw(rt, "host network")
		if rapid.Bool().Draw(rt, "config") {
			pod.Spec.DNSConfig = &v1.PodDNSConfig{
				Nameservers: rapid.SliceOfN(rapid.SampledFrom([]string{"192.0.2.1", "192.0.2.9"}), 0, 3).Draw(rt, "nameservers"),
				Searches:    rapid.SliceOfN(domain, 0, 3).Draw(rt, "searches"),
				Options:     []v1.PodDNSConfigOption{{Name: "ndots", Value: rapid.SampledFrom([]*string{nil, new("3")}).Draw(rt, "ndots")}, {Name: "edns0"}},
			}
		}
		clusterDNS := rapid.SampledFrom([][]string{nil, {"10.0.0.10"}}).Draw(rt, "cluster's DNS")
		var ips []net.IP
		for _, ip := range clusterDNS {
			ips = append(ips, net.ParseIP(ip))
		}
		events := record.NewFakeRecorder(10)
		want, err := dns.NewConfigurer(events, &v1.ObjectReference{}, nil, ips, "cluster.local", path).GetPodDNS(context.Background(), pod)
		if err != nil {
			rt.Fatal(err)
		}

		host, err := env.ParseResolvConf(strings.NewReader(file.String()))
		if err != nil {
			rt.Fatal(err)
		}
		got, warnings := env.Resolver{ClusterDNS: clusterDNS, ClusterDomain: "cluster.local", Host: host}.For(pod)
		slices.Sort(want.Options) // the kubelet leaves their order to chance
		slices.Sort(got.Options)
		for _, pair := range [][2][]string{{want.Servers, got.Servers}, {want.Searches, got.Searches}, {want.Options, got.Options}} {
			if !slices.Equal(pair[0], pair[1]) {
				rt.Fatalf("got %q, the kubelet's is %q, of\n%s", pair[1], pair[0], file.String())
			}
		}
		close(events.Events)
		var said, wanted []string
		for _, warning := range warnings {
			said = append(said, "Warning "+warning.Reason+" "+warning.Message)
		}
		for event := range events.Events {
			if !strings.Contains(event, "MissingClusterDNS kubelet") { // that one is about the node
				wanted = append(wanted, event)
			}
		}
		if diff := cmp.Diff(wanted, said); diff != "" {
			rt.Fatal(diff)
		}
	})
}
