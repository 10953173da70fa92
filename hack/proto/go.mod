module github.com/berth-k8s/berth/hack/proto

go 1.26.0

tool (
	connectrpc.com/connect/cmd/protoc-gen-connect-go
	google.golang.org/protobuf/cmd/protoc-gen-go
)

require (
	github.com/bufbuild/protocompile v0.14.1
	go.yaml.in/yaml/v3 v3.0.6
	google.golang.org/protobuf v1.36.12-0.20260120151049-f2248ac996af
)

require (
	connectrpc.com/connect v1.21.1 // indirect
	golang.org/x/sync v0.8.0 // indirect
)
