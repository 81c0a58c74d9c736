package tensor

//go:generate sh -c "cd ../../tools && go run ./asmgen -out ../internal/tensor/kernels_amd64.s -stubs ../internal/tensor/stubs_amd64.go -pkg tensor"
